"""Tensors of safetensors files: headers, and bytes in pieces, so that memory does not grow with the file."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from swiftspec.files.reading import open_input, parse_foreign_json, shown
from swiftspec.files.safetensors import LENGTH_BYTES, header_length

_MOST_DIMENSIONS = 64  # as in numpy
_MOST_COUNT = 2**63 - 1
_PIECE_ELEMENTS = 1 << 20
_WIDTHS = {
    1: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"),
    2: ("I16", "U16", "F16", "BF16"),
    4: ("I32", "U32", "F32"),
    8: ("I64", "U64", "F64"),
}
_DTYPE_BYTES = {dtype: width for width, dtypes in _WIDTHS.items() for dtype in dtypes}
_NUMPY_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a safetensors file.

    path: its file. name, dtype: names in the header; dtypes are `BF16`, `F32` and so on. offset, num_bytes: where its
    bytes are in the file.
    """

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def pieces(self) -> Iterator[bytes]:
        """Its bytes in order, a million numbers at a time. ValueError naming the file if it cannot be read."""
        most_bytes = _PIECE_ELEMENTS * _DTYPE_BYTES[self.dtype]
        with os.fdopen(open_input(self.path), "rb") as file:
            try:
                file.seek(self.offset)
                left = self.num_bytes
                while left:
                    piece = file.read(min(left, most_bytes))
                    if not piece:
                        raise ValueError(f"{self.path}: has become shorter while it was read")
                    left -= len(piece)
                    yield piece
            except OSError as error:
                raise ValueError(f"{self.path}: cannot be read ({error.strerror})") from error

    def values(self) -> Iterator[NDArray[np.float64]]:
        """Its numbers in order, a million at a time. ValueError naming the tensor if it is not floating point."""
        if self.dtype != "BF16" and self.dtype not in _NUMPY_TYPES:
            raise ValueError(f"{self.path}: tensor {self.name} has dtype {self.dtype}; expected F64, F32, F16 or BF16")
        for piece in self.pieces():
            if self.dtype == "BF16":  # the upper half of a float32
                yield (np.frombuffer(piece, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            else:
                yield np.frombuffer(piece, _NUMPY_TYPES[self.dtype]).astype(np.float64)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file by name. ValueError, one sentence naming the file, if it is damaged."""
    length = header_length(path)
    with os.fdopen(open_input(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(LENGTH_BYTES)
        text = file.read(length)
    start = LENGTH_BYTES + length
    try:
        header = parse_foreign_json(text)
    except ValueError as error:
        raise _damaged(path, f"its header is {error}") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no object")
    return {
        name: _tensor(path, name, entry, start=start, end=size)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _tensor(path: Path, name: str, entry: Any, *, start: int, end: int) -> StoredTensor:
    """A tensor whose place and size agree with its shape."""
    label = f"tensor {shown(name)[1:-1]}"
    values = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = values.get("dtype"), values.get("shape"), values.get("data_offsets")
    if dtype not in _DTYPE_BYTES:
        raise _damaged(path, f"{label} has dtype {shown(dtype)}")
    if not _are_counts(shape):
        raise _damaged(path, f"{label} has shape {shown(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{label} has data_offsets {shown(offsets)}")
    begin, stop = offsets
    num_bytes = math.prod(shape) * _DTYPE_BYTES[dtype]
    if stop - begin != num_bytes or start + stop > end:
        raise _damaged(path, f"{label} has {num_bytes} bytes, and data_offsets {offsets} of {end - start}")
    return StoredTensor(
        path=path, name=name, dtype=dtype, shape=tuple(shape), offset=start + begin, num_bytes=num_bytes
    )


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    """Whether these are few and small enough to be multiplied."""
    return (
        isinstance(values, list)
        and len(values) <= _MOST_DIMENSIONS
        and all(type(value) is int and 0 <= value <= _MOST_COUNT for value in values)
    )


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path}: not a readable safetensors file: {why}")
