"""A group of processes: a program and all that it starts. It ends with its context, down to the last process.

Linux only. A process that leaves the group, as daemons do, is not of it any more.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import BinaryIO

from swiftspec.interpreters import interpreter_command

_KILLED_WITHIN_S = 10.0  # releasing gigabytes takes a while
_LOOK_EVERY_S = 0.05
_STATE, _GROUP, _NUM_THREADS = 0, 2, 17  # fields of /proc/PID/stat after the name
_log = logging.getLogger("swiftspec")


class ProcessGroup:
    """A running group. Its leader's end leaves a zombie until `end`, so that nobody else gets the group's number."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], output: BinaryIO) -> None:
        self._leader = subprocess.Popen(
            interpreter_command("swiftspec.external.leader", str(os.getpid()), *command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,  # what a terminal sends to this program's group is for this program to handle
        )
        self.pid = self._leader.pid

    @property
    def exit_code(self) -> int | None:
        """The leader's, negative for a signal; None while it runs."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    @property
    def cores(self) -> Set[int]:
        """Cores that its threads are bound to; all that it may use if none is bound."""
        every = os.sched_getaffinity(0)
        allowed = [
            cores for entry in Path("/proc").glob("[0-9]*") if _runs_in(self.pid, entry) for cores in _cores(entry)
        ]
        return set().union(*(cores for cores in allowed if cores < every)) or every

    def end(self, *, within_s: float, noted: Sequence[int]) -> None:
        """Ask all processes to end, and kill those that run after a while, or as soon as a signal has been noted."""
        self._signal(signal.SIGTERM)
        until_s = time.monotonic() + within_s
        while self._is_running() and not noted and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
        self._signal(signal.SIGKILL)
        until_s = time.monotonic() + _KILLED_WITHIN_S
        while self._is_running() and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
        if self._is_running():  # only the kernel, or a driver in it, can hold them up
            _log.warning("processes of group %d have been killed and have not ended", self.pid)
            return
        self._leader.wait()
        with suppress(ChildProcessError):  # until there are no more that this program has adopted
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _is_running(self) -> bool:
        return any(_runs_in(self.pid, entry) for entry in Path("/proc").glob("[0-9]*"))


def _runs_in(group: int, entry: Path) -> bool:
    """Whether a process is of a group and has not ended; one of many threads is a zombie before the last has ended."""
    try:
        stat = (entry / "stat").read_bytes()
    except OSError:  # it has gone
        return False
    fields = stat.rpartition(b")")[2].split()
    return int(fields[_GROUP]) == group and (fields[_STATE] not in (b"Z", b"X") or int(fields[_NUM_THREADS]) > 1)


def _cores(entry: Path) -> Iterator[Set[int]]:
    """Cores that each thread of a process may use."""
    for thread in entry.glob("task/[0-9]*"):
        with suppress(OSError):  # it has gone
            yield os.sched_getaffinity(int(thread.name))


@contextmanager
def process_group(
    command: Sequence[str], *, environment: Mapping[str, str], output: BinaryIO, ends_within_s: float
) -> Iterator[ProcessGroup]:
    """Start a program; when the context ends, however it does, nothing runs of it and of what it has started.

    If this program is killed, or the thread that is in the context ends, the kernel sends SIGTERM to the leader.
    """
    group = None
    try:
        with _signals_noted():  # none comes between the start and its bookkeeping
            group = ProcessGroup(command, environment=environment, output=output)
        yield group
    finally:
        if group is not None:
            with _signals_noted() as noted:
                group.end(within_s=ends_within_s, noted=noted)


@contextmanager
def _signals_noted() -> Iterator[Sequence[int]]:
    """Context in which signals that would end this program are noted; afterwards it receives the first of them again.

    They do what they always do, later: what handles them is put back before. Those that are ignored stay ignored.
    """
    noted: list[int] = []
    if current_thread() is not main_thread():  # only the main thread is interrupted
        yield noted
        return
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {n: before for n in ending if (before := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    try:
        for number in previous:
            signal.signal(number, lambda number, _: noted.append(number))
        yield noted
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
        if noted:
            signal.raise_signal(signal.Signals(noted[0]))
