"""A folder for an engine's sockets and meeting places, and removal of those that killed launchers left."""

import errno
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "swiftspec-run-"
_OWNER_FILE = "owner.lock"  # locked while the folder's launcher lives: the kernel releases the lock however that ends
_MAX_SOCKET_BYTES = 107  # of a Unix socket's path, sockaddr_un of Linux
_LONGEST_NAME = "channel-99-99"
_FALLBACKS = ("/tmp", "/var/tmp", "/dev/shm")


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder that only this user can open, removed at the end; first, folders of killed launchers are.

    In TMPDIR; if its path is too long for a socket's, or nothing can be created there, in one of `_FALLBACKS`.
    OSError: if none of them can be used.
    """
    bases = list(dict.fromkeys((tempfile.gettempdir(), *_FALLBACKS)))
    for base in bases:
        _sweep(Path(base))
    folder, lock = _made(bases)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, the lock last: if interrupted, the folder left is not locked by anyone, or is empty."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != _OWNER_FILE:
                path.unlink()  # sockets and files: it contains no folders
    shutil.rmtree(folder, ignore_errors=True)


def _made(bases: Sequence[str]) -> tuple[Path, int]:
    failures = []
    for base in bases:
        if len(os.fsencode(os.path.join(base, f"{PREFIX}12345678", _LONGEST_NAME))) > _MAX_SOCKET_BYTES:
            failures.append(f"{base} (too long a path for a socket)")
            continue
        try:
            while (made := _make(base)) is None:
                pass  # another launcher's sweep removed it between creating and locking
        except OSError as error:
            failures.append(f"{base} ({error.strerror})")
        else:
            return made
    raise OSError(errno.ENOENT, f"no folder for the engine's sockets can be made in {', '.join(failures)}; set TMPDIR")


def _make(base: str) -> tuple[Path, int] | None:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    try:
        lock = os.open(folder / _OWNER_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / _OWNER_FILE).exists():
                os.close(lock)
                return None
            _check_sockets(folder)
        except OSError:
            os.close(lock)
            raise
    except FileNotFoundError:
        return None
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, lock


def _check_sockets(folder: Path) -> None:
    """OSError unless a socket can be created: some file systems have none, and a full one has no inode left."""
    path = folder / _LONGEST_NAME
    with socket.socket(socket.AF_UNIX) as trial:
        trial.bind(str(path))
    path.unlink()


def _sweep(base: Path) -> None:
    """Remove this user's folders whose launcher has provably gone: their lock is free. Others are left alone."""
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    try:
        lock = os.open(folder / _OWNER_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        folder.rmdir()  # if it is empty; a launcher that is just creating it makes another
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError while it is in use
        _remove(folder)
    finally:
        os.close(lock)
