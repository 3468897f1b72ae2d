"""Folders for compiled code, of this user alone, and files there that are known to be whole.

To load a library is to run it. So a folder or file that belongs to another user, or that others can write, is not
used, wherever it lies; this is checked on open descriptors, since a name may mean something else a moment later. A
file ends with the checksum of what is before it.
"""

import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHECKSUM_BYTES = hashlib.sha256().digest_size
_MAX_FILE_BYTES = 64 * 2**20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class DamagedError(Exception):
    """Says why a file cannot be used."""


class Folder:
    """An open folder of this user alone; `private_folder` checks that."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, name: str) -> bytes | None:
        """Content of a file; None if there is none.

        DamagedError: if it is not whole, or not of this user alone.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for its other end
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedError(error.strerror) from error
        with open(descriptor, "rb", closefd=True) as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedError("it is not a file")
            if fault := _fault(found):
                raise DamagedError(fault)
            sealed = file.read(_MAX_FILE_BYTES)
        content, checksum = sealed[:-_CHECKSUM_BYTES], sealed[-_CHECKSUM_BYTES:]
        if hashlib.sha256(content).digest() != checksum:
            raise DamagedError("its checksum is wrong")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file, complete or not at all: others may be writing the same. OSError if that fails."""
        draft = f".{name}-{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o600, dir_fd=self._descriptor)
        try:
            with open(descriptor, "wb", closefd=True) as file:
                file.write(content)
                file.write(hashlib.sha256(content).digest())
            os.replace(draft, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=self._descriptor)
            raise


@contextmanager
def private_folder(path: Path) -> Iterator[Folder]:
    """A folder, made if there is none. OSError if that fails, or it is not of this user alone."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if fault := _fault(os.fstat(descriptor)):
            raise PermissionError(0, fault)
        yield Folder(descriptor)
    finally:
        os.close(descriptor)


def _fault(found: os.stat_result) -> str:
    """What is wrong with the rights on a file or folder, if anything."""
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, not to {os.geteuid()}"
    return "others can write it" if found.st_mode & _OTHERS_WRITE else ""


def cache_folders() -> Iterator[Path]:
    """Where compiled code may lie: in the user's cache, otherwise in the folder for temporary files."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):  # as its specification says
        root = os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(root):  # there is a home
        yield Path(root, "swiftspec")
    with suppress(FileNotFoundError):  # no folder that can be written
        yield Path(tempfile.gettempdir(), f"swiftspec-{os.geteuid()}")


def file_in_memory(content: bytes) -> str:
    """Path of a file that nobody else can change. It stays open: the loader takes a path it has seen for the same."""
    descriptor = os.memfd_create("swiftspec-cpu-kernels")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return f"/proc/self/fd/{descriptor}"
