"""The dispatcher with workers that report what a test tells them to."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue

import pytest

from swiftspec.engine.dispatcher import Dispatcher
from swiftspec.engine.model.sampler import Sampler
from swiftspec.engine.process.placement import LocalExecutor
from swiftspec.engine.process.protocol import (
    Cancel,
    Command,
    Committed,
    Failed,
    Fault,
    Finished,
    Generate,
    Ready,
    Report,
    Setup,
)
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.engine.process.worker_handle import Worker, WorkerLostError, check_report
from swiftspec.engine.requests.task import RequestOptions
from swiftspec.engine.running import Event, Generation, RunningRequest
from swiftspec.errors import EngineBusyError, EngineError
from swiftspec.policies import Policy, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from tests.engine.processes import until
from tests.engine.setups import setup

ALONE = make_policy("autoregressive")


class FakeWorker:
    """A process that reports what it is given, and notes what it is told."""

    node = ""
    state = "running"
    has_ended = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.told: list[Command] = []
        self._reports: deque[Report] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._has_died = False
        self.report(Ready(1, (0,), "cpu"))

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

    def receive(self) -> Report:
        if not self._reports:
            raise WorkerLostError(f"the {self.setup.name} process ended unexpectedly", was_started=True)
        return check_report(self._reports.popleft())

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

    def latest(self, role: Role) -> FakeWorker:
        return next(worker for worker in reversed(self.started) if worker.setup.role is role)


class Engine:
    """A dispatcher over fake processes."""

    def __init__(self, *, with_draft: bool = False, **limits: int) -> None:
        self.site = Site()
        roles = Role if with_draft else (Role.TARGET,)
        self.groups = {role: WorkerGroup(self.site, [setup(role=role)], max_restarts=9) for role in roles}
        for group in self.groups.values():
            group.start()
            group.attend_start()
        self.target = self.site.latest(Role.TARGET)
        self.dispatcher = Dispatcher(
            [self.groups[Role.TARGET]],
            self.groups.get(Role.DRAFT),
            admission=AdmissionLimits(**({"max_running": 8} | limits)),
            fallback=make_policy("prompt_lookup"),
            patience_s=1.0,
        )

    def submit(
        self, prompt: tuple[int, ...], *, max_new_tokens: int = 8, policy: Policy = ALONE, client: str = ""
    ) -> tuple[RunningRequest, SimpleQueue[Event]]:
        events = SimpleQueue[Event]()
        request = Request(prompt=prompt, max_new_tokens=max_new_tokens)
        options = RequestOptions(client=client)
        running = self.dispatcher.submit(
            policy, request, name="x", sampler=Sampler(), options=options, deliver=events.put
        )
        return running, events

    def close(self) -> None:
        self.dispatcher.close()
        for group in self.groups.values():
            group.close()


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.close()


def commits(events: SimpleQueue[Event], count: int) -> list[tuple[int, ...]]:
    """So many commits, however they are delivered."""
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        event = events.get(timeout=9)
        assert isinstance(event, tuple)
        found += event
    return found


def ended(events: SimpleQueue[Event]) -> Generation:
    """The end of a request whose tokens do not matter."""
    while isinstance(event := events.get(timeout=9), tuple):
        pass
    assert isinstance(event, Generation)
    return event


def numbers(worker: FakeWorker) -> list[int]:
    return [command.number for command in worker.begun()]


def test_a_request_fails_for_the_reason_that_its_process_said_before_it_ended(engines: list[Engine]) -> None:
    engines.append(engine := Engine())
    _, events = engine.submit((9,))
    until(lambda: len(engine.target.told) == 1)
    engine.target.report(Failed("tokens contain 9", is_user_error=True))
    engine.target.die()
    failure = events.get(timeout=9)
    assert isinstance(failure, ValueError)
    assert str(failure) == "tokens contain 9"
    assert isinstance(engine.submit((1,))[1].get(timeout=9), ValueError)


def test_tokens_are_delivered_as_they_come_and_the_rest_waits_for_a_place(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=2))
    events = [engine.submit((number,))[1] for number in range(3)]
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(Committed(2, (5,)), Committed(1, (6, 7)), Committed(2, (8,)), Finished(2, [], 0))
    assert commits(events[1], 2) == [(5,), (8,)]
    assert ended(events[1]).tokens == (5, 8)
    assert events[0].get(timeout=9) == ((6, 7),)
    until(lambda: numbers(engine.target) == [1, 2, 3])
    assert events[2].empty()


def test_more_than_may_wait_are_refused(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=1, max_waiting=1))
    events = [engine.submit((number,))[1] for number in range(3)]
    refusal = events[2].get(timeout=9)
    assert isinstance(refusal, EngineBusyError)
    assert str(refusal) == "1 requests are waiting, which is the limit"


def test_what_never_fits_is_refused_with_the_numbers(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=2))
    refusal = engine.submit(tuple(range(30)), max_new_tokens=3)[1].get(timeout=9)
    assert isinstance(refusal, ValueError)
    assert str(refusal) == "a request of 33 tokens needs 3 blocks of 16; the cache has 2"


def test_a_request_is_cancelled_wherever_it_is(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=1))
    (running, of_running), (waiting, of_waiting) = engine.submit((1,)), engine.submit((2,))
    until(lambda: numbers(engine.target) == [1])
    engine.dispatcher.cancel(waiting)
    assert ended(of_waiting).interrupted
    engine.dispatcher.cancel(running)
    until(lambda: engine.target.cancelled() == [1])
    engine.target.report(Committed(1, (4,)), Finished(1, [], 0))
    generation = ended(of_running)
    assert (generation.tokens, generation.interrupted) == ((4,), True)
    engine.dispatcher.cancel(running)  # again: nothing happens
    engine.submit((3,))
    until(lambda: numbers(engine.target) == [1, 2])


def test_a_target_that_does_not_end_a_cancelled_request_is_not_waited_for(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=1))
    running, events = engine.submit((1,))
    until(lambda: numbers(engine.target) == [1])
    engine.dispatcher.cancel(running)
    assert ended(events).interrupted


def test_the_youngest_gives_way_and_continues_on_its_whole_text(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=3))
    old, young = engine.submit(tuple(range(15)), max_new_tokens=20)[1], engine.submit(tuple(range(14)))[1]
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(Committed(2, (5,)), Committed(1, (1,)), Committed(1, (2,)))
    assert commits(old, 2) == [(1,), (2,)]
    assert engine.target.cancelled() == []
    engine.target.report(Committed(1, tuple(range(16))))  # its 33rd token
    until(lambda: engine.target.cancelled() == [2])
    engine.target.report(Committed(2, (6,)), Finished(2, [], 0))  # it had gone on meanwhile
    assert commits(young, 2) == [(5,), (6,)]
    assert numbers(engine.target) == [1, 2]
    engine.target.report(Committed(1, (3, 3)), Finished(1, [], 0))
    until(lambda: numbers(engine.target) == [1, 2, 3])
    again = engine.target.begun()[-1].request
    assert (again.prompt, again.max_new_tokens, again.num_output) == ((*range(14), 5, 6), 6, 2)
    engine.target.report(Committed(3, (7,) * 6), Finished(3, [], 0))
    generation = ended(young)
    assert (generation.tokens, generation.preemptions, generation.interrupted) == ((5, 6, *(7,) * 6), 1, False)


def test_the_youngest_of_the_busiest_client_gives_way_to_another_client(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=2))
    first, second = engine.submit((1,), client="a")[1], engine.submit((2,), client="a")[1]
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(Committed(2, (5,)))
    other = engine.submit((3,), client="b")[1]
    until(lambda: numbers(engine.target) == [1, 2, 3] and engine.target.cancelled() == [2])
    engine.target.report(Finished(2, [], 0), Committed(3, (7,) * 8), Finished(3, [], 0))
    assert ended(other).preemptions == 0
    until(lambda: len(numbers(engine.target)) == 4)
    assert engine.target.begun()[-1].request.prompt == (2, 5)
    engine.target.report(Committed(4, (6,) * 7), Finished(4, [], 0), Committed(1, (4,) * 8), Finished(1, [], 0))
    assert (ended(second).preemptions, ended(first).preemptions) == (1, 0)


def test_a_request_that_gives_way_twice_begins_when_it_is_admitted(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=3))
    old = engine.submit(tuple(range(15)), max_new_tokens=30)[1]
    middle, (young, _) = engine.submit(tuple(range(15)))[1], engine.submit(tuple(range(14)))
    until(lambda: numbers(engine.target) == [1, 2, 3])
    engine.target.report(Committed(1, (1, 2)))  # its 17th token
    until(lambda: engine.target.cancelled() == [3])
    engine.target.report(Committed(2, (4,)), Finished(2, [], 0))
    assert ended(middle).tokens == (4,)
    until(lambda: young.is_due)
    engine.target.report(Committed(1, (3,) * 16))  # its 33rd
    engine.target.report(Finished(3, [], 0), Committed(1, (5,)))
    assert commits(old, 3) == [(1, 2), (3,) * 16, (5,)]
    assert numbers(engine.target) == [1, 2, 3]
    engine.target.report(Finished(1, [], 0))
    until(lambda: numbers(engine.target) == [1, 2, 3, 4])
    assert young.preemptions == 2


def test_a_cancelled_request_that_would_have_given_way_has_ended(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=3))
    old = engine.submit(tuple(range(15)), max_new_tokens=20)[1]
    young, of_young = engine.submit(tuple(range(14)))
    until(lambda: numbers(engine.target) == [1, 2])
    engine.dispatcher.cancel(young)
    until(lambda: engine.target.cancelled() == [2])
    engine.target.report(Committed(1, (1,) * 18), Finished(2, [], 0), Finished(1, [], 0))
    assert ended(of_young).interrupted
    assert len(ended(old).tokens) == 18


def test_a_request_that_ends_while_it_gives_way_has_ended(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=2))
    old, young = engine.submit(tuple(range(15)), max_new_tokens=9)[1], engine.submit(tuple(range(15)), max_new_tokens=1)
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(Committed(1, (1, 2)))
    until(lambda: engine.target.cancelled() == [2])
    engine.target.report(Committed(2, (6,)), Finished(2, [], 0))
    generation = ended(young[1])
    assert (generation.tokens, generation.interrupted) == ((6,), False)
    engine.target.report(Committed(1, (0,) * 7), Finished(1, [], 0))
    assert len(ended(old).tokens) == 9
    assert numbers(engine.target) == [1, 2]


def test_a_draft_that_comes_back_joins_all_requests_under_way(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True))
    policy = make_policy("swiftspec")
    first = engine.site.latest(Role.DRAFT)
    events = [engine.submit((number,), policy=policy)[1] for number in range(2)]
    until(lambda: numbers(first) == [1, 2])
    assert not any(command.alone for command in (*first.begun(), *engine.target.begun()))
    first.die()
    until(lambda: engine.site.latest(Role.DRAFT) is not first)
    second = engine.site.latest(Role.DRAFT)
    until(lambda: numbers(second) == [1, 2])
    assert all(command.alone for command in second.begun())
    engine.target.report(*(Committed(number, (5,) * 8) for number in (1, 2)))
    engine.target.report(*(Finished(number, [], 1) for number in (1, 2)))
    second.report(*(Finished(number, [], 0) for number in (1, 2)))
    assert [ended(each).losses for each in events] == [1, 1]


def test_a_draft_that_does_not_end_what_it_should_is_left_out_until_it_does(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True))
    policy, draft = make_policy("swiftspec"), engine.site.latest(Role.DRAFT)
    events = engine.submit((1,), policy=policy)[1]
    until(lambda: numbers(draft) == [1])
    engine.target.report(Finished(1, [], 0))
    ended(events)  # after a moment
    assert draft.cancelled() == [1]
    engine.submit((2,), policy=policy)
    until(lambda: numbers(engine.target) == [1, 2])
    assert engine.target.begun()[1].alone
    assert numbers(draft) == [1]
    draft.report(Finished(1, [], 0))
    until(lambda: numbers(draft) == [1, 2])
    assert draft.begun()[1].alone


def test_closing_fails_what_is_under_way() -> None:
    engine = Engine()
    _, events = engine.submit((1,))
    until(lambda: numbers(engine.target) == [1])
    engine.target.report(Committed(1, (4,)))
    assert events.get(timeout=9) == ((4,),)
    engine.close()
    failure = events.get(timeout=9)
    assert isinstance(failure, EngineError)
    assert (str(failure), failure.tokens) == ("the engine was closed", (4,))


def test_an_error_in_a_targets_program_ends_its_request_alone(
    engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engines.append(engine := Engine(with_draft=True, max_running=2))
    policy = make_policy("swiftspec")
    events = [engine.submit((number,), policy=policy)[1] for number in range(3)]
    until(lambda: numbers(engine.target) == [1, 2])
    fault = Fault("ZeroDivisionError: division by zero", "Traceback: of the worker")
    engine.target.report(Committed(1, (5,)), Finished(1, [], fault=fault))
    draft = engine.site.latest(Role.DRAFT)
    until(lambda: draft.cancelled() == [1])
    draft.report(Finished(1, []))
    assert commits(events[0], 1) == [(5,)]
    failure = events[0].get(timeout=9)
    assert isinstance(failure, EngineError)
    assert str(failure) == "the request failed in the target (ZeroDivisionError: division by zero)"
    assert failure.tokens == (5,)
    assert "Traceback: of the worker" in caplog.text
    until(lambda: numbers(engine.target) == [1, 2, 3])  # its place is free
    for number in (2, 3):
        engine.target.report(Committed(number, (7,) * 8), Finished(number, []))
        draft.report(Finished(number, []))
        assert ended(events[number - 1]).tokens == (7,) * 8


def test_an_error_in_a_drafts_program_leaves_the_target_to_go_on(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True))
    _, events = engine.submit((1,), policy=make_policy("swiftspec"))
    until(lambda: numbers(engine.target) == [1])
    engine.site.latest(Role.DRAFT).report(Finished(1, [], fault=Fault("KeyError: 7", "Traceback")))
    engine.target.report(Committed(1, (7,) * 8), Finished(1, [], losses=1))
    assert ended(events).tokens == (7,) * 8
    assert engine.dispatcher.state().num_running == 0


def test_an_error_of_whoever_takes_its_tokens_ends_that_request(engines: list[Engine]) -> None:
    engines.append(engine := Engine())
    taken: list[Event] = []

    def take(event: Event) -> None:
        taken.append(event)
        if isinstance(event, tuple):
            raise OverflowError("no such token")

    request = Request(prompt=(1,), max_new_tokens=8)
    engine.dispatcher.submit(ALONE, request, name="x", sampler=Sampler(), options=RequestOptions(), deliver=take)
    _, others = engine.submit((2,))
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(Committed(1, (5,)), Committed(2, (6,)))
    until(lambda: engine.target.cancelled() == [1])
    engine.target.report(Finished(1, []), Committed(2, (6,) * 7), Finished(2, []))
    assert ended(others).tokens == (6,) * 8
    until(lambda: len(taken) == 2)
    assert isinstance(taken[1], EngineError)
    assert "OverflowError: no such token" in str(taken[1])


def test_what_a_process_said_before_it_failed_is_a_sentence_and_its_traceback_is_logged(
    engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engines.append(engine := Engine())
    _, events = engine.submit((9,))
    until(lambda: len(engine.target.told) == 1)
    engine.target.report(Failed("the target process failed (KeyError: 7)", is_user_error=False, trace="Traceback: x"))
    failure = events.get(timeout=9)
    assert isinstance(failure, EngineError)
    assert str(failure) == "the target process failed (KeyError: 7)"
    assert "Traceback: x" in caplog.text


@pytest.mark.parametrize("tpot_s", [5e-324, 0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_of_latency_that_no_request_can_have_is_refused(tpot_s: float) -> None:
    with pytest.raises(ValueError, match=r"tpot_s is .*; expected 1e-06 or more seconds"):
        RequestOptions(tpot_s=tpot_s)
