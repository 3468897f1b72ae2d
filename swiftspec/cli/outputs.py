"""Files that verbs write: checked before the long work, and never over an input or each other."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swiftspec.cli import console
from swiftspec.errors import check_extra
from swiftspec.files.writing import STDOUT, Destination, locate, write_output

__all__ = ["check_outputs", "saved", "write_json"]

_FIGURES = (".png", ".svg", ".pdf")
# Files read from a directory that is given as an input: a model's, or one of op measurements.
_READ_NAMES = ("config.json", "tokenizer.json", "model.safetensors.index.json")
_READ_SUFFIXES = (".safetensors", ".csv")


def check_outputs(
    *,
    inputs: Mapping[str, Path | str | None] | None = None,
    beside: Mapping[str, Path] | None = None,
    **paths: Path | None,
) -> None:
    """Refuse outputs that could not be written now, or that would overwrite an input or each other.

    If one of them is stdout, messages go to stderr from now on.

    inputs: files and directories that the verb reads, by the name that errors use: `--plan`. beside: files that are
    written next to an output, by the name that errors use: `the profile next to --out`. paths: outputs, by the name of
    their option: `json` for `--json`.

    ValueError: one sentence naming option and path.
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


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write machine-readable results, if they were asked for."""
    if path is not None:
        write_output(path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
