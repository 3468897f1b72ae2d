"""The dispatcher where a request fails: it ends alone, its places are free, and the log says why."""

from __future__ import annotations

import pytest

from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.protocol import CommitReport, EndReport, FailureReport, Fault
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent, RunningRequest
from swiftspec.errors import EngineError
from swiftspec.policies import Request, make_policy
from swiftspec.policies.effects import Role
from tests.engine.fake_workers import ALONE, Engine, commits, ended, numbers
from tests.engine.processes import until


def test_an_error_in_a_targets_program_ends_its_request_alone(
    engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engines.append(engine := Engine(with_draft=True, max_running=2))
    policy = make_policy("swiftspec")
    events = [engine.submit((number,), policy=policy)[1] for number in range(3)]
    until(lambda: numbers(engine.target) == [1, 2])
    fault = Fault("ZeroDivisionError: division by zero", "Traceback: of the worker")
    engine.target.report(CommitReport(1, (5,)), EndReport(1, [], fault=fault))
    draft = engine.site.latest(Role.DRAFT)
    until(lambda: draft.cancelled() == [1])
    draft.report(EndReport(1, []))
    assert commits(events[0], 1) == [(5,)]
    failure = events[0].get(timeout=60)
    assert isinstance(failure, EngineError)
    assert str(failure) == "the request failed in the target (ZeroDivisionError: division by zero)"
    assert failure.tokens == (5,)
    assert "Traceback: of the worker" in caplog.text
    until(lambda: numbers(engine.target) == [1, 2, 3])  # its place is free
    for number in (2, 3):
        engine.target.report(CommitReport(number, (7,) * 8), EndReport(number, []))
        draft.report(EndReport(number, []))
        assert ended(events[number - 1]).tokens == (7,) * 8


def test_an_error_in_a_drafts_program_leaves_the_target_to_go_on(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True))
    _, events = engine.submit((1,), policy=make_policy("swiftspec"))
    until(lambda: numbers(engine.target) == [1])
    engine.site.latest(Role.DRAFT).report(EndReport(1, [], fault=Fault("KeyError: 7", "Traceback")))
    engine.target.report(CommitReport(1, (7,) * 8), EndReport(1, [], losses=1))
    assert ended(events).tokens == (7,) * 8
    assert engine.dispatcher.state().num_running == 0


def test_an_error_of_whoever_takes_its_tokens_ends_that_request(engines: list[Engine]) -> None:
    engines.append(engine := Engine())
    taken: list[RequestEvent] = []

    def take(event: RequestEvent) -> None:
        taken.append(event)
        if isinstance(event, tuple):
            raise OverflowError("no such token")

    task = Task(prompt_id="x", request=Request(prompt=(1,), max_new_tokens=8))
    engine.dispatcher.submit(RunningRequest(task=task, policy=ALONE, sampler=Sampler(), deliver=take))
    _, others = engine.submit((2,))
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(CommitReport(1, (5,)), CommitReport(2, (6,)))
    until(lambda: engine.target.cancelled() == [1])
    engine.target.report(EndReport(1, []), CommitReport(2, (6,) * 7), EndReport(2, []))
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
    engine.target.report(
        FailureReport("the target process failed (KeyError: 7)", is_user_error=False, trace="Traceback: x")
    )
    failure = events.get(timeout=60)
    assert isinstance(failure, EngineError)
    assert str(failure) == "the target process failed (KeyError: 7)"
    assert "Traceback: x" in caplog.text


@pytest.mark.parametrize("tpot_s", [5e-324, 0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_of_latency_that_no_request_can_have_is_refused(tpot_s: float) -> None:
    with pytest.raises(ValueError, match=r"tpot_s is .*; expected 1e-06 or more seconds"):
        Task(prompt_id="x", request=Request(prompt=(1,), max_new_tokens=8), tpot_s=tpot_s)
