"""Worker group: the processes of one TP group as the launcher sees them: it starts, commands and restarts them."""

import logging
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace

from swiftspec.engine.process.placement import Executor
from swiftspec.engine.process.protocol import Cancel, EndReport, Generate, ProcessInfo, Report, RequestReport, Setup
from swiftspec.engine.process.timeouts import RestartBudget
from swiftspec.engine.process.worker_handle import Worker, WorkerLostError
from swiftspec.errors import EngineError
from swiftspec.policies.effects import Role

_START_ATTEMPTS = 4
_log = logging.getLogger("swiftspec")


class WorkerGroup:
    """The processes of one TP group, which may be restarted.

    setups: one for each rank, the leader first. max_restarts: within an hour, see `reports_or_restart`.
    """

    def __init__(self, executor: Executor, setups: Sequence[Setup], *, max_restarts: int = 0) -> None:
        self.role = setups[0].role
        self.group = setups[0].group
        self.num_starts = 0
        self.processes: tuple[ProcessInfo, ...] = ()  # once all are ready
        self.last_error = ""  # the error that ended it last
        self._executor = executor
        self._setups = setups
        self._workers: list[Worker] = []
        self._ending: list[Worker] = []  # killed, and not yet seen to have ended
        self._ready: dict[int, ProcessInfo] = {}  # by rank
        self._restarts = RestartBudget(max_restarts)
        self._has_said_so = False  # that no restart is left
        self._begun: set[int] = set()  # numbers of requests given to it that have not been forgotten
        self._open: set[int] = set()  # and of those it has not finished
        self._cancelled: set[int] = set()  # and of those that it was told to end

    def start(self) -> None:
        """Request every process; reports tell when they are ready. EngineError or ValueError if that is impossible."""
        self.num_starts += 1
        size = len(self._setups)
        name = f"{self.role}-{self.group}-{self.num_starts}"
        tp_group = self._executor.tp_group(name) if size > 1 else ""
        for setup in self._setups:
            self._workers.append(self._executor.start(replace(setup, tp_group=tp_group)))

    def attend_start(self) -> None:
        """Check on a first start, again if the fork server or a draft died. ValueError or EngineError if it fails."""
        try:
            for _ in self.reports():
                pass  # no request was made yet
        except WorkerLostError as lost:
            is_draft = self.role is Role.DRAFT
            if (lost.was_started and not is_draft) or self.num_starts >= _START_ATTEMPTS:
                raise
            self.close()
            self.start()

    def unready(self) -> Iterator[str]:
        """Processes that have not reported their models loaded, and their states."""
        for worker in self._workers:
            if worker.setup.rank not in self._ready:
                yield f"{worker.setup.name} ({worker.state})"

    @property
    def is_ready(self) -> bool:
        """Whether all processes exist and have their models."""
        return bool(self.processes)

    @property
    def is_given_up(self) -> bool:
        """Whether it has died and no restart is left."""
        return not self._workers and self._restarts.is_spent

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def has_room(self) -> bool:
        """Whether a request more has caches there: it is ready, and has ended what it was told to end.

        One that is suspended would hold the caches of these.
        """
        return self.is_ready and not self._cancelled and self.num_open < self._setups[0].max_running

    def knows(self, number: int) -> bool:
        """Whether a request was given to these processes, even if they have finished it."""
        return number in self._begun

    def is_at(self, number: int) -> bool:
        return number in self._open

    def generate(self, command: Generate) -> None:
        self._begun.add(command.number)
        self._open.add(command.number)
        self._workers[0].send(command)

    def cancel(self, number: int) -> None:
        if number in self._open and number not in self._cancelled:
            self._cancelled.add(number)
            self._workers[0].send(Cancel(number))

    def forget(self, number: int) -> None:
        self._begun.discard(number)

    def filenos(self) -> list[int | None]:
        """Descriptors that are readable when there are reports; None for a process on another node."""
        return [worker.fileno() for worker in self._workers]

    def may_report(self, readable: Set[int]) -> bool:
        """Whether `reports` may find something. readable: the descriptors, of all, that are readable."""
        return not self.is_ready or any(fileno is None or fileno in readable for fileno in self.filenos())

    def reports(self) -> Iterator[RequestReport]:
        """Reports since the last call. ValueError or EngineError if one of its processes failed or is gone."""
        for worker in reversed(self._workers):  # if a follower is gone the leader fails, too, but as a consequence
            for report in worker.reports():
                self._note(worker, report)
                if isinstance(report, RequestReport):
                    yield report

    def reports_or_restart(self) -> Iterator[RequestReport]:
        """Reports since the last call; a group that failed is restarted, if allowed. Never waits, never raises."""
        try:
            yield from self.reports()
        except (EngineError, ValueError) as error:
            self._fail(error)
        if not self._workers:
            self._restart()

    def _restart(self) -> None:
        self._ending = [worker for worker in self._ending if not worker.has_ended]
        if self._restarts.is_spent and not self._has_said_so:
            self._has_said_so = True
            often = f"{self._restarts.most + 1} times" if self._restarts.most else "and max_restarts is 0"
            _log.warning(
                "the %s has died %s within an hour; the target decodes alone. The last time: %s",
                self.role,
                often,
                self.last_error,
            )
        if self._ending or not self._restarts.allows_now:
            return
        self._restarts.take()
        self._has_said_so = False
        try:
            self.start()
        except (EngineError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the processes that are left, without waiting."""
        self.last_error = str(error)
        for worker in self._workers:
            worker.kill()
        self._ending += self._workers
        self._forget()

    def _note(self, worker: Worker, report: Report) -> None:
        if isinstance(report, ProcessInfo):
            self._ready[report.rank] = replace(report, node=worker.node)
            if len(self._ready) == len(self._setups):
                self.processes = tuple(self._ready[rank] for rank in range(len(self._setups)))
                self._restarts.succeeded()
        elif isinstance(report, EndReport):
            self._open.discard(report.number)
            self._cancelled.discard(report.number)

    def hang_up(self) -> None:
        for worker in self._workers:
            worker.hang_up()

    def close(self) -> None:
        with ExitStack() as stack:
            for worker in (*self._ending, *self._workers):
                stack.callback(worker.close)
            self.hang_up()
        self._ending.clear()
        self._forget()

    def _forget(self) -> None:
        self._workers.clear()
        self._ready.clear()
        self.processes = ()
        for numbers in (self._begun, self._open, self._cancelled):
            numbers.clear()
