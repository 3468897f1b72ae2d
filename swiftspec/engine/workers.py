"""A process of the engine as the launcher sees it: commands go in, reports come out, and it may be gone."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from typing import Protocol

from swiftspec.engine.interrupts import interrupts_held
from swiftspec.engine.protocol import Command, Failed, Report, Setup
from swiftspec.errors import EngineError

__all__ = ["LocalWorker", "Worker", "check_report"]

_ENDS_WITHIN_S = 0.2


class Worker(Protocol):
    """A started process."""

    setup: Setup

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


class LocalWorker:
    """A child process, and the pipe to it that nobody else holds."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._connection, theirs = Pipe()
        threads = str(setup.num_threads)
        # Huge pages for the weights: 1-5 % of a memory-bound forward, measured on one core.
        tuning = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        with interrupts_held():  # inherited: Ctrl-C in a terminal is the launcher's to handle
            self._process = subprocess.Popen(
                [sys.executable, "-m", "swiftspec.engine.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | tuning,
            )
        theirs.close()
        self._connection.send(setup)

    def send(self, command: Command) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `receive` will say so
            self._connection.send(command)

    def poll(self) -> bool:
        return self._connection.poll()

    def receive(self) -> Report:
        try:
            report = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise EngineError(f"the {self.setup.name} process {_fate(self._process.wait())}") from error
        return check_report(report)

    def fileno(self) -> int:
        """Readable when `poll` is true."""
        return self._connection.fileno()

    def hang_up(self) -> None:
        self._connection.close()

    def close(self) -> None:
        self.hang_up()
        try:
            self._process.wait(timeout=_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def check_report(report: Report) -> Report:
    """The report, unless it is that the process failed, which is raised."""
    if isinstance(report, Failed):
        raise (ValueError if report.is_user_error else EngineError)(report.sentence)
    return report


def _fate(code: int) -> str:
    if code == -9:
        return "ended unexpectedly: it was killed (signal 9), by hand or for want of memory"
    return f"ended unexpectedly ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
