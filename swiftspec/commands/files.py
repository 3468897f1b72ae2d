"""What the verbs write: paths are tried before the long work, files appear whole or not at all."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftspec.files.writing import write_output

__all__ = ["check_outputs", "write_json"]

_FIGURES = (".png", ".svg", ".pdf")


def check_outputs(**paths: Path | None) -> None:
    """ValueError, naming the option, for the first path that could not be written now, or would be written twice."""
    wanted: dict[Path, str] = {}
    for option, path in paths.items():
        if path is not None:
            _check(f"--{option}", path)
            if (other := wanted.setdefault(path.resolve(), option)) != option:
                raise ValueError(f"--{option} is {path}, where --{other} is to be written, too")
    if (plot := paths.get("plot")) is not None and plot.suffix not in _FIGURES:
        raise ValueError(f"--plot is {plot}; expected a name ending in {', '.join(_FIGURES)}")


def _check(option: str, path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{option} is {path}, a directory; expected a file to write")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"{option} is {path}, which cannot be written ({error.strerror})") from error
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{option} is {path}, which cannot be written (write-protected)")


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Machine-readable results, where they were asked for."""
    if path is not None:
        write_output(path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
