"""Fork server: imports torch once and forks every worker, so that workers and their replacements start at once.

A `ForkServer` starts it, with two arguments: the descriptor of the socket for requests, and the launcher's process id.
It computes nothing itself, so that no thread of torch exists when it forks.

It ends with its launcher: the kernel then kills it, even while it imports or is stopped, and continues its workers; a
worker that was stopped finds that its launcher has gone, and ends, too.
"""

import gc
import os
import select
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from enum import IntEnum
from importlib import import_module
from multiprocessing.connection import Connection

from swiftspec.parent_death import signal_on_parent_death

REQUEST = struct.Struct("<i")  # number of the requested process; the path of its folder follows
NEWS = struct.Struct("<iii")  # kind, number of the process, value
MAX_PATH_BYTES = 2**16


class News(IntEnum):
    """Kinds of messages from the fork server, and the value of each."""

    READY = 0  # nothing: torch is imported
    STARTED = 1  # the process id; with a pidfd of the process, if the kernel has them
    REFUSED = 2  # the error number of fork
    ENDED = 3  # the exit code, negative for a signal


def main() -> None:
    """Fork a worker for every request, and report how each ended, until the launcher has gone."""
    control, launcher = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    with suppress(OSError):  # a kernel without it: the end of the socket has to do
        signal_on_parent_death(signal.SIGKILL)
    if os.getppid() == launcher:  # unless it ended before that
        with suppress(BrokenPipeError, ConnectionResetError):  # it is ending
            _serve(control, pidfd_of(launcher))
    os._exit(0)


def pidfd_of(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends and is never reused for another; None on old kernels."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _serve(control: socket.socket, launcher: int | None) -> None:
    import_module("swiftspec.engine.process.worker_main")  # takes seconds, so once for all workers

    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()  # otherwise every garbage collection in a child would copy all pages
    numbers: dict[int, int] = {}  # of workers, by process id
    control.send(NEWS.pack(News.READY, 0, 0))
    sources = select.poll()  # `select.select` is limited to descriptors below 1024; `control` has the launcher's number
    sources.register(control, select.POLLIN)
    sources.register(woken, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in sources.poll()}
        if woken in ready:
            os.read(woken, 512)
            _tell_ends(control, numbers)
        if control.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST.size + MAX_PATH_BYTES, 1)
            if not descriptors:
                return
            (number,) = REQUEST.unpack_from(request)
            try:
                pid = os.fork()
            except OSError as error:
                control.send(NEWS.pack(News.REFUSED, number, error.errno or 0))
            else:
                if pid == 0:
                    _become_worker(descriptors[0], request[REQUEST.size :], launcher, (control.detach(), woken, wakes))
                numbers[pid] = number
                _tell_start(control, number, pid)
            os.close(descriptors[0])


def _tell_start(control: socket.socket, number: int, pid: int) -> None:
    pidfd = pidfd_of(pid)  # of a child that has not been waited for, so the pid is still its own
    socket.send_fds(control, [NEWS.pack(News.STARTED, number, pid)], [] if pidfd is None else [pidfd])
    if pidfd is not None:
        os.close(pidfd)


def _tell_ends(control: socket.socket, numbers: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            number = numbers.pop(ended[0])
            control.send(NEWS.pack(News.ENDED, number, os.waitstatus_to_exitcode(ended[1])))


def _become_worker(connection: int, folder: bytes, launcher: int | None, inherited: tuple[int, ...]) -> None:
    """Become the worker in a forked child; never returns to the fork server's code."""
    from swiftspec.engine.process import worker_main

    code = 1
    try:
        with suppress(OSError):
            # Not SIGKILL: a worker outlives the fork server. A running worker ignores the signal; a stopped one
            # continues, and ends if the launcher has gone.
            signal_on_parent_death(signal.SIGCONT)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in inherited:
            os.close(descriptor)
        os.chdir(folder)
        worker_main.serve(Connection(connection), launcher=launcher)
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
        traceback.print_exc()
    finally:
        os._exit(code)
