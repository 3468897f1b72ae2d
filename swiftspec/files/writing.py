"""The one writer of outputs.

A regular file appears whole or not at all. Anything else that a path names (`-` for standard output, a pipe, a device,
an open descriptor such as /dev/fd/63) is written to in place, and never replaced.
"""

import os
import re
import secrets
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swiftspec.files.reading import NO_TERMINAL

STDOUT = 1
_MOST_LINKS = 40  # Linux's own limit
_NUMBER = re.compile("[0-9]{1,9}")  # of a descriptor


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of an output's bytes.

    path: the file at the end of all symbolic links. descriptor: an open descriptor of this process, if the path names
    one; 1 is standard output. status: status of the existing file; None if there is none.
    """

    path: Path
    descriptor: int | None
    status: os.stat_result | None

    @property
    def is_stream(self) -> bool:
        """Whether bytes are written to the existing stream, instead of to a new file that replaces it."""
        return self.descriptor is not None or (self.status is not None and not stat.S_ISREG(self.status.st_mode))

    @property
    def identity(self) -> object:
        """Equal for two destinations that are the same stream or file; None for devices, which may be shared."""
        if self.descriptor is not None:
            return self.descriptor
        if self.status is None:
            return self.path
        if stat.S_ISCHR(self.status.st_mode):
            return None
        return self.status.st_dev, self.status.st_ino

    def check(self) -> None:
        """OSError if this could not be written now. Changes nothing."""
        self.check_kind()
        if not self.is_stream:
            probe = _partial(self.path)
            os.close(_create(probe))
            probe.unlink()

    def check_kind(self) -> None:
        """OSError for a directory, a disk, or anything write-protected."""
        if self.descriptor == STDOUT:
            return
        if self.descriptor is not None:
            import fcntl  # not on Windows, where descriptors have no names

            if fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(0, "open for reading only")
        elif self.status is not None:
            if stat.S_ISDIR(self.status.st_mode):
                raise OSError(0, "Is a directory")
            if stat.S_ISBLK(self.status.st_mode):
                raise OSError(0, "a block device")
            if not os.access(self.path, os.W_OK):
                raise OSError(0, "write-protected")


def locate(path: Path) -> Destination:
    """Destination of a path named for an output. OSError if it cannot be resolved, as in a loop of links."""
    if path == Path("-"):
        return Destination(path, STDOUT, None)
    if (descriptor := _descriptor(path)) is not None:
        return Destination(path, descriptor, os.fstat(descriptor))
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    return Destination(Path(os.path.realpath(path)), None, status)


def write_output(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write an output.

    A new file gets the permissions that the umask leaves; a replaced one keeps its own. Links are followed.

    private: for secrets: a new file that only this user may read; never one that exists.

    ValueError: one sentence naming the path. BrokenPipeError: if standard output has no reader any more.
    """
    try:
        destination = locate(path)
        destination.check_kind()
        if private and not destination.is_stream:
            _create_private(destination.path, content)
        elif not destination.is_stream:
            _replace(destination, content)
        elif destination.descriptor == STDOUT:
            _write_to_stdout(content)
        else:
            own = destination.descriptor
            opened = os.open(destination.path, os.O_WRONLY | NO_TERMINAL) if own is None else os.dup(own)
            with os.fdopen(opened, "wb") as file:
                file.write(content)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and locate(path).descriptor == STDOUT:
            raise
        name = "stdout" if path == Path("-") else path
        raise ValueError(f"{name}: cannot be written ({error.strerror})") from error


def _descriptor(path: Path) -> int | None:
    """The number N of /dev/fd/N, /proc/self/fd/N, /dev/stdout and links to them; None for any other path.

    These are links to open files and must not be followed: a file at the end of one is already being written.
    """
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if folder == f"/proc/{os.getpid()}/fd" and _NUMBER.fullmatch(path.name):
            return int(path.name)
        whole = Path(folder, path.name)
        if not whole.is_symlink():
            return None
        path = Path(folder, whole.readlink())
    return None


def _replace(destination: Destination, content: bytes) -> None:
    """Write a neighbouring file, then rename: a reader or a full disk never sees half a file."""
    partial = _partial(destination.path)
    descriptor = _create(partial)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if destination.status is not None and sys.platform != "win32":
                _copy_permissions(destination.status, descriptor)
            file.write(content)
        os.replace(partial, destination.path)
    finally:
        with suppress(OSError):
            partial.unlink()  # exists unless it was renamed, also after an interrupt


def _create_private(path: Path, content: bytes) -> None:
    descriptor = _create(path, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        path.unlink()
        raise


def _copy_permissions(status: os.stat_result, descriptor: int) -> None:
    mode = stat.S_IMODE(status.st_mode)
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except PermissionError:
            mode &= ~stat.S_ISUID & ~stat.S_ISGID
    os.fchmod(descriptor, mode)


def _partial(path: Path) -> Path:
    """An unpredictable file name in the folder of `path`."""
    return path.parent / f".swiftspec-{secrets.token_hex(8)}.partial"


def _create(path: Path, mode: int = 0o666) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # and follows no link


def _write_to_stdout(content: bytes) -> None:
    if sys.stdout is None:
        raise OSError(0, "closed")
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
