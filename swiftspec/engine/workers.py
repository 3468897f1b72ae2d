"""A process of the engine as the launcher sees it: commands go in, reports come out, and it may be gone."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Protocol

from swiftspec.engine.nursery import Nursery
from swiftspec.engine.protocol import Command, Failed, Report, Setup
from swiftspec.errors import EngineError

__all__ = ["LocalWorker", "Worker", "check_report", "start_process"]

_ENDS_WITHIN_S = 0.2
_KILLED_WITHIN_S = 5.0  # gigabytes take a while to be given back


class Worker(Protocol):
    """A started process.

    node: the machine that it is on, of several; 0 is the launcher's.
    """

    setup: Setup
    node: int

    def send(self, command: Command) -> None:
        """Tell it something; nothing happens if it is gone."""

    def poll(self) -> bool:
        """Whether `receive` would answer, or raise, at once."""

    def receive(self) -> Report:
        """Its next report. ValueError with its sentence if it failed at what the user gave, else EngineError."""

    def hang_up(self) -> None:
        """Let it end."""

    def close(self) -> None:
        """Hang up, and end the process if that does not."""


def start_process(nursery: Nursery, num_threads: int) -> tuple[int, list[Connection]]:
    """Its id, and a pipe to each of its threads."""
    pipes = [Pipe() for _ in range(num_threads)]
    with ExitStack() as stack:
        theirs = [stack.enter_context(their_end).fileno() for _, their_end in pipes]
        pid = nursery.start(theirs)
    return pid, [ours for ours, _ in pipes]


class LocalWorker:
    """A process of this machine, and the pipe to it that nobody else holds."""

    def __init__(self, setup: Setup, nursery: Nursery, pid: int, connection: Connection) -> None:
        self.setup = setup
        self.node = 0
        self._nursery = nursery
        self._pid = pid
        self._connection = connection
        connection.send(setup)

    @classmethod
    def start(cls, setup: Setup, nursery: Nursery) -> LocalWorker:
        """A process of its own."""
        pid, (connection,) = start_process(nursery, 1)
        return cls(setup, nursery, pid, connection)

    def send(self, command: Command) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` will say so
            self._connection.send(command)

    def poll(self) -> bool:
        return self._connection.poll()

    def receive(self) -> Report:
        try:
            report = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            code = self._nursery.exit_code(self._pid, within_s=_ENDS_WITHIN_S)
            raise EngineError(f"the {self.setup.name} process ended unexpectedly{_fate(code)}") from error
        return check_report(report)

    def fileno(self) -> int:
        """Readable when `poll` is true."""
        return self._connection.fileno()

    def hang_up(self) -> None:
        self._connection.close()

    def close(self) -> None:
        self.hang_up()
        if self._nursery.exit_code(self._pid, within_s=_ENDS_WITHIN_S) is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._nursery.exit_code(self._pid, within_s=_KILLED_WITHIN_S)


def check_report(report: Report) -> Report:
    """The report, unless it is that the process failed, which is raised."""
    if isinstance(report, Failed):
        raise (ValueError if report.is_user_error else EngineError)(report.sentence)
    return report


def _fate(code: int | None) -> str:
    if code is None:
        return ""
    if code == -signal.SIGKILL:
        return ": it was killed (signal 9), by hand or for want of memory"
    return f" ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
