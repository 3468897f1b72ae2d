"""Archives of arrays (.npz). The reader checks sizes before it allocates or decompresses anything."""

import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from swiftspec.files.reading import open_input

MOST_ARCHIVE_BYTES = 128 << 20  # of all arrays together: a trace of some 300,000 output tokens
_MOST_ARRAYS = 1000
_ENTRY = b"PK\x01\x02"  # start of every entry of a zip file's directory
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that numpy writes
# Errors of zipfile and numpy for bytes that are not an archive, such as ValueError for a name that is not text.
_NO_ARCHIVE = (
    *(TypeError, ValueError, EOFError, KeyError, RuntimeError, OverflowError, MemoryError, SyntaxError),
    *(TokenError, zipfile.BadZipFile, zlib.error),
)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_archive(path: Path, *, kind: str) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name.

    kind: expected kind of file, for the error: `an acceptance trace`.

    ValueError: one sentence naming the file, for anything that is not such an archive or is too large.
    """
    descriptor = open_input(path)
    try:
        with os.fdopen(descriptor, "rb") as file:
            _check_directory(file)
            with zipfile.ZipFile(file) as archive:
                _check_sizes(archive)
                return {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
    except _TooLargeError as error:
        raise ValueError(f"{path}: {error}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except _NO_ARCHIVE as error:
        raise ValueError(f"{path}: not {kind} (.npz)") from error


class _TooLargeError(Exception):
    """Error: an archive is larger than the limit."""


def _check_directory(file: IO[bytes]) -> None:
    """Refuse a directory of millions of entries before it is read."""
    size = os.fstat(file.fileno()).st_size
    if size > MOST_ARCHIVE_BYTES:
        raise _TooLargeError(f"has {size >> 20} MiB; at most {MOST_ARCHIVE_BYTES >> 20} MiB are read of an archive")
    entries, tail = 0, b""
    while block := file.read(1 << 20):
        entries += (tail + block).count(_ENTRY)
        tail = block[-len(_ENTRY) + 1 :]
    if entries > _MOST_ARRAYS:
        raise _TooLargeError(f"holds {entries} arrays or more; at most {_MOST_ARRAYS} are read of an archive")
    file.seek(0)


def _check_sizes(archive: zipfile.ZipFile) -> None:
    total = sum(info.file_size for info in archive.infolist())
    if total > MOST_ARCHIVE_BYTES:
        raise _TooLargeError(
            f"holds {total >> 20} MiB of arrays; at most {MOST_ARCHIVE_BYTES >> 20} MiB are read of an archive"
        )
    if any(info.compress_type not in _COMPRESSIONS for info in archive.infolist()):
        raise ValueError("compressed as numpy does not")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        _check_header(member, info.file_size)
    with archive.open(info) as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        member.read(1)  # reaches the end, where the checksum is verified
        return array


def _check_header(member: IO[bytes], size: int) -> None:
    """ValueError unless the array has the size in its header."""
    version = np.lib.format.read_magic(member)
    if version not in _HEADERS:
        raise ValueError(f"version {version}")
    shape, _, dtype = _HEADERS[version](member)
    if dtype.hasobject or min(shape, default=0) < 0 or member.tell() + prod(shape) * dtype.itemsize != size:
        raise ValueError(f"shape {shape} of {dtype}")


def archive_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a compressed .npz file of these arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict[str, Any](arrays))
    return buffer.getvalue()
