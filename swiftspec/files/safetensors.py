"""Safetensors files of a model: which they are, and whether their headers can be read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from swiftspec.errors import install_command
from swiftspec.files.reading import is_unicode, open_input, read_foreign_json, shown

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_BUNDLED = Path(__file__).parents[1] / "demo"  # models whose weights are another package's
LENGTH_BYTES = 8  # length of the header, little-endian, at the start of the file
_MOST_HEADER_BYTES = 16 << 20  # the largest known ones have a hundredth of this


def header_length(path: Path) -> int:
    """Bytes of a safetensors file's header. ValueError unless they are plausible, so that any reader can hold them."""
    with os.fdopen(open_input(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if not 0 < length <= min(_MOST_HEADER_BYTES, size - LENGTH_BYTES):
        raise ValueError(f"{path}: not a readable safetensors file: its header would have {length} bytes")
    return length


def weight_files(directory: Path) -> list[Path]:
    """The files with a model's weights: model.safetensors, or those that its index names. ValueError without any."""
    index = directory / _INDEX_FILE
    if (directory / _SINGLE_FILE).is_file():
        return [directory / _SINGLE_FILE]
    if not index.is_file():
        command = f": {install_command('demo')}" if directory.parent == _BUNDLED else ""
        raise ValueError(f"{directory}: neither {_SINGLE_FILE} nor {_INDEX_FILE} is there{command}")
    content = read_foreign_json(index)
    weight_map = content.get("weight_map") if isinstance(content, Mapping) else None
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise ValueError(f"{index}: expected an object with a weight_map of tensor names to file names")
    for tensor, name in weight_map.items():
        if not _is_file_name(name):
            raise ValueError(f"{index}: weight_map.{shown(tensor)[1:-1]} is {shown(name)}; expected a file next to it")
    return [directory / name for name in sorted(set(weight_map.values()))]


def _is_file_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and is_unicode(name) and name not in ("", "..") and Path(name).name == name
