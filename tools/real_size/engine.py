"""An engine in a process of its own: it is asked how long it takes, and answers in seconds.

A question is a line `sequences prompt_length new_tokens`; the answer is a line of JSON: `prompt_s`, until all sequences
have their first token, and `steps_s`, of every further step of all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

_LAST_LINES = 5


class EngineError(Exception):
    """An engine cannot be started or has ended; its last lines say why."""


@dataclass(frozen=True, slots=True)
class Question:
    """Requests at once, tokens of each prompt, and new tokens of each."""

    num_sequences: int
    prompt_length: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Times:
    """prompt_s: until all sequences have a token; step_s: the median of the further steps, 0 without any."""

    prompt_s: float
    step_s: float


class Engine:
    """A worker that is started by `command`; `with` ends it."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = os.memfd_create(name)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **(variables or {})},
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()  # which closes the pipes
        os.close(self._log)

    def ask(self, question: Question) -> Times:
        """EngineError if the engine has ended."""
        words = (question.num_sequences, question.prompt_length, question.new_tokens)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith('{"prompt_s"'):  # others write there, too
                    found = json.loads(line)
                    return Times(found["prompt_s"], statistics.median(found["steps_s"] or [0.0]))
        except BrokenPipeError:
            pass
        raise EngineError(f"{self.name} has ended: {self._last_words()}")

    def _last_words(self) -> str:
        with open(os.dup(self._log), encoding="utf-8", errors="replace") as log:
            log.seek(0)
            return " / ".join(log.read().strip().splitlines()[-_LAST_LINES:])
