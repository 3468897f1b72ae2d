"""Forks the engine's processes off one that has loaded torch: that takes seconds once, and every process is there at
once, also one that takes the place of a dead one.

`python -m swiftspec.engine.nursery FD` is started by a `Nursery`, never by hand. It computes nothing itself, so that no
thread of torch exists when it forks, and ends with its launcher.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Lock

from swiftspec.engine.interrupts import interrupts_held
from swiftspec.errors import EngineError

__all__ = ["Nursery", "shared_nursery"]

_NEWS = struct.Struct("<?ii")  # whether a process ended, its id, its exit code (negative: the signal)
_MOST_BYTES = 2**16  # of a path
_MOST_THREADS = 8
_ENDS_WITHIN_S = 1.0


class Nursery:
    """Where launchers, of whatever threads, have their processes started. Nothing runs before the first `start`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._codes: dict[int, int] = {}  # of processes that have ended
        self._has_gone = False
        self._lock = Lock()

    def start(self, connections: Sequence[int]) -> int:
        """Fork a worker, here, that holds the pipes with these descriptors; its process id.

        It has a thread for each of several. EngineError if there is nothing to fork it off, ValueError without a here.
        """
        try:
            folder = os.fsencode(os.getcwd())
        except FileNotFoundError as error:
            raise ValueError("the current folder has been removed; expected one to start processes in") from error
        with self._lock:
            control = self._control or self._begin()
            try:
                socket.send_fds(control, [folder], connections)
            except OSError:
                self._has_gone = True
            while not self._has_gone and (news := self._news()):
                ended, pid, code = news
                if not ended:
                    return pid
                self._codes[pid] = code
        raise EngineError("the process that starts the engine's others has gone")

    def exit_code(self, pid: int, *, within_s: float) -> int | None:
        """How a process ended, negative for a signal; None if it has not, or if nobody can say any more."""
        assert self._control is not None, "it has started the process"
        until_s = time.monotonic() + within_s
        with self._lock:
            while pid not in self._codes:
                ready, _, _ = select.select([self._control], [], [], max(0.0, until_s - time.monotonic()))
                news = self._news() if ready else None
                if news is None:
                    return None
                _, ended, code = news
                self._codes[ended] = code
            return self._codes[pid]

    @property
    def is_there(self) -> bool:
        """Whether it can start processes, as far as is known."""
        return not self._has_gone and (self._process is None or self._process.poll() is None)

    def _news(self) -> tuple[bool, int, int] | None:
        """What it says next, as `_NEWS` has it; None when it has gone."""
        assert self._control is not None
        news = b""
        with suppress(ConnectionResetError):
            news = self._control.recv(_NEWS.size)
        self._has_gone = not news
        return _NEWS.unpack(news) if news else None

    def close(self) -> None:
        """End it; its processes have ended before, or end with their pipes."""
        if self._control is None or self._process is None:
            return
        self._control.close()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _begin(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Huge pages for the weights: 1-5 % of a memory-bound forward, measured on one core.
        tuning = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        with theirs, interrupts_held():  # inherited: Ctrl-C in a terminal is the launcher's to handle
            self._process = subprocess.Popen(
                [sys.executable, "-m", "swiftspec.engine.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | tuning,
            )
        return self._control


@contextmanager
def shared_nursery() -> Iterator[Nursery]:
    """The nursery of this process: engines that are there together load torch once. The last to leave ends it."""
    with _sharing:
        nursery = _shared[-1] if _shared and _shared[-1].is_there else Nursery()
        _shared.append(nursery)
    try:
        yield nursery
    finally:
        with _sharing:
            _shared.remove(nursery)
            is_last = nursery not in _shared
        if is_last:
            nursery.close()


_sharing = Lock()
_shared: list[Nursery] = []  # once for everyone who holds one; another one takes the place of one that was killed


def main() -> None:
    """Fork a worker for every descriptor that comes, and say how each ended, until the launcher is gone."""
    import swiftspec.engine.worker  # noqa: F401 - what takes seconds, done once

    control = socket.socket(fileno=int(sys.argv[1]))
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()  # or every collection of a child would copy all pages
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            _tell_ends(control)
        if control.fileno() in ready:
            folder, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, _MOST_THREADS)
            if not descriptors:
                return
            pid = os.fork()
            if pid == 0:
                _become_worker(descriptors, folder, (control.detach(), woken, wakes))
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(_NEWS.pack(False, pid, 0))


def _tell_ends(control: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            control.send(_NEWS.pack(True, ended[0], os.waitstatus_to_exitcode(ended[1])))


def _become_worker(connections: Sequence[int], folder: bytes, inherited: tuple[int, ...]) -> None:
    """Never returns: what the nursery was at is not this process's."""
    from swiftspec.engine import worker

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in inherited:
            os.close(descriptor)
        os.chdir(folder)
        worker.serve(*map(Connection, connections))
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
