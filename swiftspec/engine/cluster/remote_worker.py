"""A process of the engine that a host keeps, perhaps on another machine, as the launcher sees it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from swiftspec.engine.process.clocks import LeastDelay, TimedMessage
from swiftspec.engine.process.pipes import PipeEnd
from swiftspec.engine.process.protocol import Command, EndReport, Report, Setup
from swiftspec.engine.process.worker_handle import Worker, WorkerLostError, check_report

_LOOK_EVERY_S = 0.02


class WorkerPlace(NamedTuple):
    """A place for a worker: its connection, its node, and its setup with the devices there."""

    pipe: PipeEnd
    node: str
    setup: Setup
    has_own_clock: bool


class RemoteWorker(Worker):
    """A worker that is started as soon as `place` gives its slot a host; reports have our times."""

    def __init__(self, setup: Setup, place: Callable[[], WorkerPlace | None]) -> None:
        self.setup = setup
        self.node = ""
        self._place = place
        self._pipe: PipeEnd | None = None
        self._reports: deque[Report] = deque()
        self._delay = LeastDelay()  # of its messages
        self._has_own_clock = False
        self._ahead_s = 0.0  # of its clock
        self._begin()

    def _begin(self) -> None:
        if (placed := self._place()) is not None:
            self._pipe, self.node, self.setup, self._has_own_clock = placed
            self._pipe.send(self.setup)

    def send(self, command: Command) -> None:
        if self._pipe is not None:
            self._pipe.send(TimedMessage(command, time.perf_counter(), None))

    def poll(self) -> bool:
        if self._pipe is None:
            self._begin()
        return bool(self._reports) or (self._pipe is not None and self._pipe.poll())

    def receive(self) -> Report:
        while not self.poll():
            time.sleep(_LOOK_EVERY_S)
        if not self._reports:
            assert self._pipe is not None, "something came"
            try:
                timed: TimedMessage = self._pipe.take()
            except EOFError as error:
                why = f"the {self.setup.name} process on {self.node} ended, or its node has gone"
                raise WorkerLostError(why, was_started=True) from error
            self._delay.note(timed.sent_s, time.perf_counter())
            if self._has_own_clock and timed.delay_s is not None and self._delay.seconds is not None:
                # There and back took the same time, as far as is known: what differs is the clocks' difference, twice.
                self._ahead_s = (timed.delay_s - self._delay.seconds) / 2
            self._reports.extend(timed.message if isinstance(timed.message, list) else [timed.message])
        report, ahead_s = check_report(self._reports.popleft()), self._ahead_s
        if not isinstance(report, EndReport):
            return report
        spans = [span._replace(start_s=span.start_s - ahead_s, end_s=span.end_s - ahead_s) for span in report.spans]
        return replace(report, spans=spans)

    def fileno(self) -> int | None:
        return None if self._pipe is None else self._pipe.fileno()

    def hang_up(self) -> None:
        """Let it end; its host takes care of that, before it starts another."""
        self._place = lambda: None
        if self._pipe is not None:
            self._pipe.close()

    kill = close = hang_up

    @property
    def state(self) -> str:
        return "waiting for a node with room" if self._pipe is None else f"on {self.node}"

    @property
    def has_ended(self) -> bool:
        """True: nothing here waits for it."""
        return True
