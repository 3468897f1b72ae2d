"""A dispatcher over workers that report what a test tells them to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue

from swiftspec.engine.dispatcher import Dispatcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.placement import LocalExecutor
from swiftspec.engine.process.protocol import Cancel, Command, Generate, ProcessInfo, Report, Setup
from swiftspec.engine.process.timeouts import DraftRecovery
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.engine.process.worker_handle import Worker, WorkerLostError
from swiftspec.engine.requests import Task
from swiftspec.engine.running import Generation, RequestEvent, RunningRequest
from swiftspec.policies import Policy, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas
from tests.engine.setups import setup

ALONE = make_policy("autoregressive")


class FakeWorker(Worker):
    """A process that reports what it is given, and notes what it is told."""

    state = "running"
    has_ended = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._reports: list[Report] = []
        self.told: list[Command] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._has_died = False
        self.report(ProcessInfo(role=setup.role, group=setup.group, rank=0, pid=1, cores=(0,), device="cpu"))

    def report(self, *reports: Report) -> None:
        self._reports.extend(reports)
        os.eventfd_write(self._bell, 1)

    def die(self) -> None:
        self._has_died = True
        os.eventfd_write(self._bell, 1)

    def begun(self) -> list[Generate]:
        return [command for command in self.told if isinstance(command, Generate)]

    def cancelled(self) -> list[int]:
        return [command.number for command in self.told if isinstance(command, Cancel)]

    def send(self, command: Command) -> None:
        self.told.append(command)

    def fileno(self) -> int:
        return self._bell

    def poll(self) -> bool:
        if not self._reports and not self._has_died:
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        return bool(self._reports) or self._has_died

    def _take(self) -> Sequence[Report]:
        if self._reports:
            reports, self._reports = self._reports, []
            return reports
        raise WorkerLostError(f"the {self.setup.name} process ended unexpectedly", was_started=True)

    def hang_up(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self) -> None:
        os.close(self._bell)


class Site(LocalExecutor):
    """Executor of such processes."""

    def __init__(self) -> None:
        self.started: list[FakeWorker] = []

    def start(self, setup: Setup) -> Worker:
        self.started.append(FakeWorker(setup))
        return self.started[-1]

    def latest(self, role: Role, group: int = 0) -> FakeWorker:
        place = (role, group)
        return next(one for one in reversed(self.started) if (one.setup.role, one.setup.group) == place)


class Engine:
    """A dispatcher over fake processes."""

    def __init__(self, *, with_draft: bool = False, replicas: Replicas = ONE_REPLICA, **limits: int) -> None:
        self.site = Site()
        self.groups = {
            role: [
                WorkerGroup(self.site, [setup(role=role, group=group, max_running=8)], max_restarts=9)
                for group in range(replicas.num_groups[role])
            ]
            for role in (Role if with_draft else (Role.TARGET,))
        }
        for group in self._groups:
            group.start()
            group.attend_start()
        self.target = self.site.latest(Role.TARGET)
        self.dispatcher = Dispatcher(
            self.groups[Role.TARGET],
            self.groups.get(Role.DRAFT, []),
            admission=AdmissionLimits(**({"max_running": 8} | limits)),
            recovery=DraftRecovery(patience_s=1.0),
            replicas=replicas,
        )

    @property
    def _groups(self) -> list[WorkerGroup]:
        return [group for groups in self.groups.values() for group in groups]

    def submit(
        self, prompt: tuple[int, ...], *, max_new_tokens: int = 8, policy: Policy = ALONE, client: str = ""
    ) -> tuple[RunningRequest, SimpleQueue[RequestEvent]]:
        events = SimpleQueue[RequestEvent]()
        request = Request(prompt=prompt, max_new_tokens=max_new_tokens)
        task = Task(prompt_id="x", request=request, client=client)
        running = RunningRequest(task=task, policy=policy, sampler=Sampler(), deliver=events.put)
        self.dispatcher.submit(running)
        return running, events

    def close(self) -> None:
        self.dispatcher.close()
        for group in self._groups:
            group.close()


def commits(events: SimpleQueue[RequestEvent], count: int) -> list[tuple[int, ...]]:
    """So many commits, however they are delivered."""
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        event = events.get(timeout=60)
        assert isinstance(event, tuple)
        found += event
    return found


def ended(events: SimpleQueue[RequestEvent]) -> Generation:
    """The end of a request whose tokens do not matter."""
    while isinstance(event := events.get(timeout=60), tuple):
        pass
    assert isinstance(event, Generation)
    return event


def numbers(worker: FakeWorker) -> list[int]:
    return [command.number for command in worker.begun()]
