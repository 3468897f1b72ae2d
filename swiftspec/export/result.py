"""Export: the command that starts another engine on a plan, and what that engine cannot express."""

import shlex
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from swiftspec.engines.words import LengthRange
from swiftspec.files.document import Facts


class Export(Facts):
    """Command line of a server of another engine.

    engine, full_name: its name, and that in sentences.
    version: release that the options are of.
    planned: the plan's candidate that was to be exported, `swiftspec 5+3 (verify_rows=8)`.
    planned_tokens_per_s: its predicted speed.
    candidate: what the command runs; another one if the engine cannot express the planned one.
    tokens_per_s: predicted speed of that; None if the plan has no prediction of it.
    num_replicas: servers that the command has to start, of a fleet.
    basis: origin of `candidate`, a sentence; empty if it is the planned one.
    draft_server: the command of the draft server that it asks; empty without one.
    files: files that the command reads, by their names in its folder, and their text.
    configuration: the engine's own configuration of speculative decoding; empty without any.
    schedule: draft tokens by requests at once, as exported; empty if their number is fixed.
    not_expressed: what the plan has and the command has not, a sentence each.
    remarks: what else to know, a sentence each.
    """

    engine: str
    full_name: str
    version: str
    planned: str
    planned_tokens_per_s: float = Field(gt=0)
    candidate: str
    tokens_per_s: float | None = Field(default=None, gt=0)
    num_replicas: int = Field(default=1, ge=1)
    basis: str = ""
    arguments: tuple[str, ...] = Field(min_length=1)
    environment: dict[str, str] = Field(default_factory=dict)
    draft_server: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    configuration: dict[str, Any] = Field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    not_expressed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def is_other_plan(self) -> bool:
        """Whether the command runs something else than was planned."""
        return bool(self.basis)

    @property
    def command(self) -> str:
        """The command for a shell, an option a line; behind that of a draft server, if there is one."""
        before = [_line_by_line(self.draft_server) + " &"] if self.draft_server else []
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return "\n".join([*before, _line_by_line(self.arguments, variables)])

    @property
    def script(self) -> str:
        """A shell script that writes the files and starts the server."""
        lines = ["#!/bin/sh", f"# {self.candidate} for {self.full_name} {self.version}"]
        if self.num_replicas > 1:
            lines.append(f"# One of {self.num_replicas} equal servers: run it once for each, on devices of its own.")
        lines += [f"# Not expressed: {sentence}" for sentence in self.not_expressed]
        lines.append("set -e")
        for name, text in self.files.items():
            lines += [f"cat > {shlex.quote(name)} <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
        return "\n".join([*lines, self.command]) + "\n"


def _line_by_line(words: Sequence[str], before: Sequence[str] = ()) -> str:
    begin = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    lines = [*before, shlex.join(words[:begin])]
    for word in words[begin:]:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n    ".join(lines)
