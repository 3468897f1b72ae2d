"""A process of the engine as the launcher sees it: it takes commands, sends reports, and may be gone."""

import logging
import signal
from collections.abc import Iterator, Sequence
from typing import Protocol, Self

from swiftspec.engine.process.fork_server_client import ForkedProcess, ForkServer
from swiftspec.engine.process.pipes import PipeEnd, pipe
from swiftspec.engine.process.protocol import Command, FailureReport, Report, Setup
from swiftspec.engine.process.timeouts import is_stopped
from swiftspec.errors import EngineError

ENDS_WITHIN_S = 0.2
_log = logging.getLogger("swiftspec")


class WorkerLostError(EngineError):
    """A process of this machine ended without a report. was_started: False if it was never forked."""

    def __init__(self, sentence: str, *, was_started: bool) -> None:
        super().__init__(sentence)
        self.was_started = was_started


class Worker(Protocol):
    """A started process. node: of the machine that it runs on; empty if the launcher started it on its own."""

    setup: Setup
    node: str = ""

    def send(self, command: Command) -> None:
        """Send a command, without waiting; does nothing if it is gone."""

    def poll(self) -> bool:
        """Whether it has reports, or has ended."""

    def reports(self) -> Iterator[Report]:
        """Its reports so far. ValueError with its sentence if the user's input was at fault, else EngineError."""
        while self.poll():
            for report in self._take():
                if isinstance(report, FailureReport):
                    if report.trace:
                        _log.error("%s\n%s", report.sentence, report.trace)
                    raise (ValueError if report.is_user_error else EngineError)(report.sentence)
                yield report

    def _take(self) -> Sequence[Report]:
        """The reports of its next message. WorkerLostError if it has ended without one."""

    def fileno(self) -> int | None:
        """Descriptor that is readable when `poll` is true, if there is one."""

    def hang_up(self) -> None:
        """Let it end."""

    def kill(self) -> None:
        """End it at once; `has_ended` tells when that is done."""

    @property
    def state(self) -> str:
        """State before its first report, as `process 123, suspended`."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, as far as is known here."""

    def close(self) -> None:
        """Hang up, and end the process if that does not; waits for its end for a limited time."""


class LocalWorker(Worker):
    """A process of this machine, and the launcher's end of its pipe."""

    def __init__(self, setup: Setup, process: ForkedProcess, end: PipeEnd) -> None:
        self.setup = setup
        self._process = process
        self._pipe = end
        end.send(setup)

    @classmethod
    def start(cls, setup: Setup, fork_server: ForkServer) -> Self:
        """Start a process, without waiting for it. EngineError if it cannot be started."""
        try:
            ours, theirs = pipe()
        except OSError as error:
            raise EngineError(f"a process cannot be started ({error.strerror})") from error
        with theirs:
            try:
                process = fork_server.start(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        return cls(setup, process, ours)

    def send(self, command: Command) -> None:
        self._pipe.send(command)

    def poll(self) -> bool:
        if self._process.pid is None:
            self._process.attend()
        return self._pipe.poll()

    def _take(self) -> Sequence[Report]:
        try:
            reports: list[Report] = self._pipe.take()
            return reports
        except EOFError as error:
            raise self._lost() from error

    def _lost(self) -> WorkerLostError:
        code = self._process.exit_code(within_s=ENDS_WITHIN_S)
        if self._process.pid is not None:
            return WorkerLostError(f"the {self.setup.name} process ended unexpectedly{_fate(code)}", was_started=True)
        why = self._process.refusal or "the fork server, which starts the engine's processes, ended"
        return WorkerLostError(f"the {self.setup.name} process could not be started: {why}", was_started=False)

    def fileno(self) -> int:
        return self._pipe.fileno()

    def hang_up(self) -> None:
        self._pipe.close()

    def kill(self) -> None:
        self.hang_up()
        self._process.kill()

    @property
    def state(self) -> str:
        if (pid := self._process.pid) is None:
            return "not yet forked"
        return f"process {pid}, {'suspended' if is_stopped(pid) else 'running'}"

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    def close(self) -> None:
        self.hang_up()
        self._process.end(within_s=ENDS_WITHIN_S)


def _fate(code: int | None) -> str:
    if code is None:
        return ""
    if code == -signal.SIGKILL:
        return ": it was killed (signal 9), by hand or for lack of memory"
    return f" ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
