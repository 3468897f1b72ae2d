"""Files that verbs write: checked before the long work, and never over an input or each other.

A plan that a verb reads names two more inputs, its profile and its trace.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import files_of
from swiftspec.cli import console
from swiftspec.errors import check_extra
from swiftspec.files.writing import STDOUT, Destination, locate, write_output

# Options that name files, whatever the verb: files that are read, some by other names if there are none, and written.
_READ = (
    *("plan", "prompts", "profile", "trace", "load", "loads", "speeds", "target", "draft", "tokenizer"),
    *("before", "after", "secret", "api_key_file", "chat_template", "op_tables"),
)
_WRITTEN = ("out", "ops", "report", "timeline", "plot", "json", "freeze")
_FIGURES = (".png", ".svg", ".pdf")
# Files read from a directory that is given as an input: a model's, or one of op measurements.
_READ_NAMES = ("config.json", "tokenizer.json", "model.safetensors.index.json")
_READ_SUFFIXES = (".safetensors", ".csv")


def check_files(
    asked: object, *, inputs: Mapping[str, Path | str | None] | None = None, beside: Mapping[str, Path] | None = None
) -> None:
    """Check the files that a verb's options name, as `check_outputs` does, and the others."""
    read = dict(inputs or {})
    for name, path in _given(asked, _READ).items():
        flag = f"--{name.replace('_', '-')}"
        read |= {f"{flag} {each}": each for each in path} if isinstance(path, list) else {flag: path}
    check_outputs(inputs=read, beside=beside, **_given(asked, _WRITTEN))


def read_plan(asked: object, plan: Path) -> Plan:
    """A verb's plan, once the files that its options and the plan name are checked."""
    check_files(asked)
    made = Plan.load(plan)
    check_outputs(inputs=files_of(made, plan), **_given(asked, _WRITTEN))
    return made


def _given(asked: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in names if hasattr(asked, name)}


def check_outputs(
    *,
    inputs: Mapping[str, Path | str | None] | None = None,
    beside: Mapping[str, Path] | None = None,
    **paths: Path | None,
) -> None:
    """ValueError for outputs that could not be written now, or that would overwrite an input or each other.

    If one of them is stdout, messages go to stderr from now on.

    inputs: files and directories that the verb reads, by the name that errors use: `--plan`. beside: files that are
    written next to an output, by such a name, too: `the profile next to --out`. paths: outputs, by the name of their
    option: `json` for `--json`.
    """
    outputs = {f"--{option}": path for option, path in paths.items() if path is not None} | dict(beside or {})
    read = {identity: name for name, path in (inputs or {}).items() if path for identity in _identities(Path(path))}
    written: dict[object, str] = {}
    for name, path in outputs.items():
        destination = _located(name, path)
        if (identity := destination.identity) is None:
            continue
        if identity in read:
            raise ValueError(f"{name} is {path}, which is read as {read[identity]}; expected another file")
        if (other := written.setdefault(identity, name)) != name:
            raise ValueError(f"{name} is {path}, where {other} is to be written, too")
        if identity == STDOUT:
            console.keep_stdout_for_data()
    if (plot := paths.get("plot")) is not None:
        if plot.suffix not in _FIGURES:
            raise ValueError(f"--plot is {plot}; expected a name ending in {', '.join(_FIGURES)}")
        check_extra("plots", needed_by="--plot")


def _located(name: str, path: Path) -> Destination:
    try:
        destination = locate(path)
        destination.check()
    except OSError as error:
        raise ValueError(f"{name} is {path}, which cannot be written ({error.strerror})") from error
    return destination


def _identities(path: Path) -> Iterator[object]:
    """Identity of the file, or of each file that is read from a directory, as in `Destination.identity`."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            for file in path.iterdir():
                if file.name in _READ_NAMES or file.suffix in _READ_SUFFIXES:
                    yield from _identities(file)
        elif stat.S_ISREG(status.st_mode):
            yield status.st_dev, status.st_ino
    except OSError:
        return  # reading it raises the error


def saved(path: Path) -> str:
    """`Saved as plan.json`, for a line of the results."""
    return f"Written to {'stdout' if path == Path('-') else path}" if locate(path).is_stream else f"Saved as {path}"


def draw(path: Path | None, figure: str, *shown: object) -> None:
    """Draw what is to be shown as the figure of this name in `swiftspec.reports.figures`, if it was asked for."""
    if path is not None:
        from swiftspec.reports import figures

        figures.save_figure(path, getattr(figures, figure)(*shown))


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write machine-readable results, if they were asked for."""
    if path is not None:
        write_output(path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
