from collections import deque
from threading import Event

import pytest

from swiftspec.engine.model.sampler import Sampler
from swiftspec.engine.process.placement import LocalExecutor
from swiftspec.engine.process.protocol import Command, Failed, Generate, Ready, Report, Setup
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.engine.process.worker_handle import Worker, WorkerLostError, check_report
from swiftspec.engine.running import RunningRequest
from swiftspec.policies import Request, make_policy
from tests.engine.setups import setup

SETUP = setup()


class FailingWorker:
    """A process that says what is wrong with its first request, and ends."""

    node = 0
    state = "running"
    has_ended = True

    def __init__(self) -> None:
        self.setup = SETUP
        self._reports: deque[Report] = deque([Ready(1, (0,), "cpu")])
        self._is_over = False

    def send(self, command: Command) -> None:
        if isinstance(command, Generate):
            self._reports.append(Failed("tokens contain 9", is_user_error=True))
            self._is_over = True

    def poll(self) -> bool:
        return bool(self._reports) or self._is_over

    def receive(self) -> Report:
        if not self._reports:
            raise WorkerLostError("the target process ended unexpectedly (exit code 0)", was_started=True)
        return check_report(self._reports.popleft())

    def hang_up(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


class FailingSite(LocalExecutor):
    """Executor of such processes."""

    def __init__(self) -> None:
        pass

    def start(self, setup: Setup) -> Worker:
        return FailingWorker()


def test_a_request_fails_for_the_reason_that_its_process_said_before_it_ended() -> None:
    worker_group = WorkerGroup(FailingSite(), [SETUP])
    worker_group.start()
    worker_group.attend_start()
    policy = make_policy("autoregressive")
    command = Generate(
        number=1,
        policy=policy,
        request=Request(prompt=(9,), max_new_tokens=1),
        sampler=Sampler(),
        patience_s=1.0,
        alone=False,
        fallback=policy,
    )
    with pytest.raises(ValueError, match=r"^tokens contain 9$"):
        list(RunningRequest([worker_group], None, command).stream(Event()))
