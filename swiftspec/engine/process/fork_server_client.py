"""The fork server as launchers see it: requests never wait, and it is replaced when it dies or freezes."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from swiftspec.engine.process.fork_server import NEWS, REQUEST, News
from swiftspec.engine.process.interrupts import signals_held
from swiftspec.engine.process.timeouts import Silence, is_stopped
from swiftspec.errors import EngineError
from swiftspec.interpreters import interpreter_command

_PROGRAM = "swiftspec.engine.process.fork_server"
_KERNELS = "SWIFTSPEC_CPU_KERNELS"  # read by swiftspec.kernels.cpu_library
_ANSWERS_WITHIN_S = 3.0  # a fork takes milliseconds; a slower fork server is replaced
_IMPORTS_WITHIN_S = 120.0  # torch, from a slow disk
_ENDS_WITHIN_S = 1.0
_KILLED_WITHIN_S = 5.0  # releasing gigabytes takes a while
_LOOK_EVERY_S = 0.05


class ForkServer:
    """Client of the fork server for launchers in any thread, which never waits for it. Nothing runs before a call.

    One that has died, or does not answer, is replaced at the next `start`. may_compile: whether workers compile the CPU
    kernels where they find none, which a launcher has tried for all of them.
    """

    def __init__(self, *, may_compile: bool = False) -> None:
        self._may_compile = may_compile
        self._server: _Server | None = None
        self._lock = Lock()

    def start(self, connection: int) -> ForkedProcess:
        """Request a worker, in the current folder, with this descriptor as its end of the pipe; closed if none starts.

        EngineError: if no fork server can be started. ValueError: if the current folder has been removed.
        """
        try:
            folder = os.fsencode(os.getcwd())
        except FileNotFoundError as error:
            raise ValueError("the current folder has been removed; expected one to start processes in") from error
        with self._lock:
            for _ in range(2):  # sending may be what shows that it has gone
                if process := self._present().ask(folder, connection):
                    return process
        raise EngineError("the fork server ended as soon as it was started")

    def prepare(self) -> None:
        """Let it import what workers need, before the first `start`. EngineError as there."""
        with self._lock:
            self._present()

    def _present(self) -> _Server:
        if self._server is None or not self._server.is_there:
            self._server = _Server(self._lock, may_compile=self._may_compile)
        return self._server

    @property
    def pid(self) -> int | None:
        return self._server.process.pid if self._server and self._server.is_there else None

    def close(self) -> None:
        """End the fork server; its processes have ended before, or end with their pipes."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()


class ForkedProcess:
    """A process requested from the fork server. pid: None until that has reported it. refusal: why it refused."""

    def __init__(self, server: _Server) -> None:
        self.pid: int | None = None
        self.refusal = ""
        self._code: int | None = None
        self._pidfd: int | None = None
        self._server = server

    def __del__(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    def attend(self) -> None:
        """Read the fork server's messages, and end it if it has been silent for too long."""
        with self._server.lock:
            self._server.attend()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, or never existed."""
        if self._pidfd is not None:
            return _is_readable(self._pidfd, within_s=0)
        if self._code is None:
            self.attend()
        return self._code is not None or self.pid is None or not self._server.is_there

    def exit_code(self, *, within_s: float) -> int | None:
        """Its exit code, negative for a signal; None if it is running or the code is unknown."""
        until_s = time.monotonic() + within_s
        self.attend()
        while self._code is None and self._server.is_there and time.monotonic() < until_s:
            self._server.wait(max(0.0, until_s - time.monotonic()))
            self.attend()
        if self._code is None and self._pidfd is not None:
            with suppress(ChildProcessError):  # it is this process's child only if this process adopts orphans
                result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
                if result is not None:
                    self._code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        return self._code

    def await_end(self, *, within_s: float) -> bool:
        if self._pidfd is not None:
            return _is_readable(self._pidfd, within_s=within_s)
        return self.exit_code(within_s=within_s) is not None or self.has_ended

    def end(self, *, within_s: float) -> None:
        """Wait so long for it to end by itself, then kill it, and wait for its end, for a limited time."""
        if not self.await_end(within_s=within_s):
            self.kill()
            self.await_end(within_s=_KILLED_WITHIN_S)

    def kill(self) -> None:
        """End it at once; does nothing if it has ended."""
        with suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self.pid is not None and not self.has_ended:  # not reused until the fork server has waited for it
                os.kill(self.pid, signal.SIGKILL)

    def hear(self, kind: News, value: int, descriptors: Sequence[int]) -> None:
        if kind is News.STARTED:
            self.pid = value
            self._pidfd = descriptors[0] if descriptors else None
        elif kind is News.REFUSED:
            self.refusal = os.strerror(value)
        elif kind is News.ENDED:
            self._code = value


class _Server:
    """One fork server: its process, and the socket to it. Callers hold the lock, except for `wait` and `close`."""

    def __init__(self, lock: Lock, *, may_compile: bool) -> None:
        self.lock = lock
        self._is_ready = False
        self.is_there = True  # it can start processes, as far as is known
        self._processes: dict[int, ForkedProcess] = {}
        self._unanswered: set[int] = set()
        self._num_asked = 0
        self._silence = Silence()
        started: Future[subprocess.Popen[bytes]] = Future()
        try:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.setblocking(False)
            # The kernel ends it with the thread that started it, so a thread starts it that lives as long as needed.
            arguments = (theirs, _variables(may_compile=may_compile), started)
            self._keeper = Thread(target=_keep, args=arguments, name="swiftspec-fork-server", daemon=True)
            self._keeper.start()
            self.process = started.result()
        except (OSError, RuntimeError) as error:  # no descriptor, thread, memory or process is left
            why = getattr(error, "strerror", None) or error
            raise EngineError(f"the fork server cannot be started ({why})") from error

    def ask(self, folder: bytes, connection: int) -> ForkedProcess | None:
        """Request a process; None if the fork server has gone."""
        self.attend()
        if not self.is_there:
            return None
        self._num_asked += 1
        request = REQUEST.pack(self._num_asked) + folder
        try:
            socket.send_fds(self._control, [request], [connection])
        except OSError:  # it has gone, or does not read
            self._end()
            return None
        if not self._unanswered:
            self._silence.broken()
        self._unanswered.add(self._num_asked)
        process = self._processes[self._num_asked] = ForkedProcess(self)
        return process

    def attend(self) -> None:
        """Read its messages. One that does not answer is ended, which closes the pipes that it was to pass on."""
        while self.is_there and self._hear():
            self._silence.broken()
        if not self.is_there or not self._unanswered:
            return
        silent_s = self._silence.look()
        is_late = silent_s > _ANSWERS_WITHIN_S and (self._is_ready or is_stopped(self.process.pid))
        if is_late or silent_s > _IMPORTS_WITHIN_S:
            self._end()

    def _hear(self) -> bool:
        """Read one message, if any; returns whether there was one."""
        try:
            news, descriptors, _, _ = socket.recv_fds(self._control, NEWS.size, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            news = b""
        if not news:
            self._end()
            return False
        kind, number, value = NEWS.unpack(news)
        if kind == News.READY:
            self._is_ready = True
            return True
        self._unanswered.discard(number)
        self._processes[number].hear(News(kind), value, descriptors)
        if kind != News.STARTED:
            del self._processes[number]
        return True

    def _end(self) -> None:
        self.is_there = False
        self._control.close()
        self.process.kill()
        self._processes.clear()
        self._unanswered.clear()

    def wait(self, seconds: float) -> None:
        """Wait for a message, for a limited time and without the lock."""
        with suppress(ValueError):  # closed meanwhile
            _is_readable(self._control.fileno(), within_s=min(seconds, _LOOK_EVERY_S))

    def close(self) -> None:
        with self.lock:
            self.is_there = False
            self._control.close()
        self._keeper.join(_ENDS_WITHIN_S)
        self.process.kill()
        self._keeper.join(_ENDS_WITHIN_S)


def _variables(*, may_compile: bool) -> Mapping[str, str]:
    # Huge pages for the weights: worth 1-5 % of a memory-bound forward, measured on one core.
    tuning = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    kernels = {} if may_compile or os.environ.get(_KERNELS) else {_KERNELS: "load"}
    return os.environ | tuning | kernels


def _keep(theirs: socket.socket, variables: Mapping[str, str], started: Future[subprocess.Popen[bytes]]) -> None:
    command = interpreter_command(_PROGRAM, str(theirs.fileno()), str(os.getpid()))
    try:
        with theirs, signals_held():
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=variables)
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the process
        started.set_exception(error)
        return
    started.set_result(process)
    process.wait()


def _is_readable(descriptor: int, *, within_s: float) -> bool:
    """Wait until a descriptor is readable; returns whether it is. Unlike `select.select`, takes those above 1023."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(1000 * within_s))


@contextmanager
def shared_fork_server() -> Iterator[ForkServer]:
    """This process's fork server: engines that exist at the same time import torch once. The last to leave ends it."""
    with _sharing:
        fork_server = _shared[-1] if _shared else ForkServer()
        _shared.append(fork_server)
    try:
        yield fork_server
    finally:
        with _sharing:
            _shared.remove(fork_server)
            is_last = fork_server not in _shared
        if is_last:
            fork_server.close()


_sharing = Lock()
_shared: list[ForkServer] = []  # once for each holder
