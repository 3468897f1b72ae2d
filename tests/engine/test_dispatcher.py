"""The dispatcher with workers that report what a test tells them to."""

from __future__ import annotations

import time

from swiftspec.engine.process.protocol import CommitReport, EndReport, FailureReport
from swiftspec.errors import EngineBusyError, EngineError
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from tests.engine.fake_workers import Engine, commits, ended, numbers
from tests.engine.processes import until


def test_a_request_fails_for_the_reason_that_its_process_said_before_it_ended(engines: list[Engine]) -> None:
    engines.append(engine := Engine())
    _, events = engine.submit((9,))
    until(lambda: len(engine.target.told) == 1)
    engine.target.report(FailureReport("tokens contain 9", is_user_error=True))
    engine.target.die()
    failure = events.get(timeout=60)
    assert isinstance(failure, ValueError)
    assert str(failure) == "tokens contain 9"
    assert isinstance(engine.submit((1,))[1].get(timeout=60), ValueError)


def test_tokens_are_delivered_as_they_come_and_the_rest_waits_for_a_place(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=2))
    events = [engine.submit((number,))[1] for number in range(3)]
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(CommitReport(2, (5,)), CommitReport(1, (6, 7)), CommitReport(2, (8,)), EndReport(2, [], 0))
    assert commits(events[1], 2) == [(5,), (8,)]
    assert ended(events[1]).tokens == (5, 8)
    assert events[0].get(timeout=60) == ((6, 7),)
    until(lambda: numbers(engine.target) == [1, 2, 3])
    assert events[2].empty()


def test_more_than_may_wait_are_refused(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=1, max_waiting=1))
    events = [engine.submit((number,))[1] for number in range(3)]
    refusal = events[2].get(timeout=60)
    assert isinstance(refusal, EngineBusyError)
    assert str(refusal) == "1 requests are waiting, which is the limit"


def test_what_never_fits_is_refused_with_the_numbers(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=2))
    refusal = engine.submit(tuple(range(30)), max_new_tokens=3)[1].get(timeout=60)
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
    engine.target.report(CommitReport(1, (4,)), EndReport(1, [], 0))
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
    engine.target.report(CommitReport(2, (5,)), CommitReport(1, (1,)), CommitReport(1, (2,)))
    assert commits(old, 2) == [(1,), (2,)]
    assert engine.target.cancelled() == []
    engine.target.report(CommitReport(1, tuple(range(16))))  # its 33rd token
    until(lambda: engine.target.cancelled() == [2])
    engine.target.report(CommitReport(2, (6,)), EndReport(2, [], 0))  # it had gone on meanwhile
    assert commits(young, 2) == [(5,), (6,)]
    assert numbers(engine.target) == [1, 2]
    engine.target.report(CommitReport(1, (3, 3)), EndReport(1, [], 0))
    until(lambda: numbers(engine.target) == [1, 2, 3])
    again = engine.target.begun()[-1].request
    assert (again.prompt, again.max_new_tokens, again.num_output) == ((*range(14), 5, 6), 6, 2)
    engine.target.report(CommitReport(3, (7,) * 6), EndReport(3, [], 0))
    generation = ended(young)
    assert (generation.tokens, generation.preemptions, generation.interrupted) == ((5, 6, *(7,) * 6), 1, False)


def test_the_youngest_of_the_busiest_client_gives_way_to_another_client(engines: list[Engine]) -> None:
    engines.append(engine := Engine(max_running=2))
    first, second = engine.submit((1,), client="a")[1], engine.submit((2,), client="a")[1]
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(CommitReport(2, (5,)))
    other = engine.submit((3,), client="b")[1]
    until(lambda: numbers(engine.target) == [1, 2, 3] and engine.target.cancelled() == [2])
    engine.target.report(EndReport(2, [], 0), CommitReport(3, (7,) * 8), EndReport(3, [], 0))
    assert ended(other).preemptions == 0
    until(lambda: len(numbers(engine.target)) == 4)
    assert engine.target.begun()[-1].request.prompt == (2, 5)
    engine.target.report(CommitReport(4, (6,) * 7), EndReport(4, [], 0), CommitReport(1, (4,) * 8), EndReport(1, [], 0))
    assert (ended(second).preemptions, ended(first).preemptions) == (1, 0)


def test_a_request_that_gives_way_twice_begins_when_it_is_admitted(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=3))
    old = engine.submit(tuple(range(15)), max_new_tokens=30)[1]
    middle, (young, _) = engine.submit(tuple(range(15)))[1], engine.submit(tuple(range(14)))
    until(lambda: numbers(engine.target) == [1, 2, 3])
    engine.target.report(CommitReport(1, (1, 2)))  # its 17th token
    until(lambda: engine.target.cancelled() == [3])
    engine.target.report(CommitReport(2, (4,)), EndReport(2, [], 0))
    assert ended(middle).tokens == (4,)
    until(lambda: young.is_due)
    engine.target.report(CommitReport(1, (3,) * 16))  # its 33rd
    engine.target.report(EndReport(3, [], 0), CommitReport(1, (5,)))
    assert commits(old, 3) == [(1, 2), (3,) * 16, (5,)]
    assert numbers(engine.target) == [1, 2, 3]
    engine.target.report(EndReport(1, [], 0))
    until(lambda: numbers(engine.target) == [1, 2, 3, 4])
    assert young.preemptions == 2


def test_a_cancelled_request_that_would_have_given_way_has_ended(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=3))
    old = engine.submit(tuple(range(15)), max_new_tokens=20)[1]
    young, of_young = engine.submit(tuple(range(14)))
    until(lambda: numbers(engine.target) == [1, 2])
    engine.dispatcher.cancel(young)
    until(lambda: engine.target.cancelled() == [2])
    engine.target.report(CommitReport(1, (1,) * 18), EndReport(2, [], 0), EndReport(1, [], 0))
    assert ended(of_young).interrupted
    assert len(ended(old).tokens) == 18


def test_a_request_that_ends_while_it_gives_way_has_ended(engines: list[Engine]) -> None:
    engines.append(engine := Engine(num_blocks=2))
    old, young = engine.submit(tuple(range(15)), max_new_tokens=9)[1], engine.submit(tuple(range(15)), max_new_tokens=1)
    until(lambda: numbers(engine.target) == [1, 2])
    engine.target.report(CommitReport(1, (1, 2)))
    until(lambda: engine.target.cancelled() == [2])
    engine.target.report(CommitReport(2, (6,)), EndReport(2, [], 0))
    generation = ended(young[1])
    assert (generation.tokens, generation.interrupted) == ((6,), False)
    engine.target.report(CommitReport(1, (0,) * 7), EndReport(1, [], 0))
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
    engine.target.report(*(CommitReport(number, (5,) * 8) for number in (1, 2)))
    engine.target.report(*(EndReport(number, [], 1) for number in (1, 2)))
    second.report(*(EndReport(number, [], 0) for number in (1, 2)))
    assert [ended(each).losses for each in events] == [1, 1]


def test_a_draft_that_does_not_end_what_it_should_is_left_out_until_it_does(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True))
    policy, draft = make_policy("swiftspec"), engine.site.latest(Role.DRAFT)
    events = engine.submit((1,), policy=policy)[1]
    until(lambda: numbers(draft) == [1])
    engine.target.report(EndReport(1, [], 0))
    ended(events)  # after a moment
    assert draft.cancelled() == [1]
    engine.submit((2,), policy=policy)
    until(lambda: numbers(engine.target) == [1, 2])
    assert engine.target.begun()[1].alone
    assert numbers(draft) == [1]
    draft.report(EndReport(1, [], 0))
    until(lambda: numbers(draft) == [1, 2])
    assert draft.begun()[1].alone


def test_closing_fails_what_is_under_way() -> None:
    engine = Engine()
    _, events = engine.submit((1,))
    until(lambda: numbers(engine.target) == [1])
    engine.target.report(CommitReport(1, (4,)))
    assert events.get(timeout=60) == ((4,),)
    engine.close()
    failure = events.get(timeout=60)
    assert isinstance(failure, EngineError)
    assert (str(failure), failure.tokens) == ("the engine was closed", (4,))


def test_output_that_a_late_draft_holds_is_waited_for(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True))
    draft = engine.site.latest(Role.DRAFT)
    _, events = engine.submit((1,), policy=make_policy("dsi"))
    until(lambda: numbers(engine.target) == [1] == numbers(draft))
    draft.report(CommitReport(1, (2,) * 3))
    engine.target.report(EndReport(1, [], 0))
    assert commits(events, 1) == [(2,) * 3]
    time.sleep(0.4)  # longer than a draft has that holds nothing but spans
    draft.report(CommitReport(1, (3,) * 5), EndReport(1, [], 0))
    generation = ended(events)
    assert (generation.tokens, generation.losses) == ((2, 2, 2, 3, 3, 3, 3, 3), 0)


def test_output_that_a_silent_draft_holds_is_decoded_without_it(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True))
    draft = engine.site.latest(Role.DRAFT)
    _, events = engine.submit((1,), policy=make_policy("dsi"))
    until(lambda: numbers(engine.target) == [1] == numbers(draft))
    draft.report(CommitReport(1, (2,) * 3))
    engine.target.report(EndReport(1, [], 0))
    until(lambda: numbers(engine.target) == [1, 2])
    again = engine.target.begun()[-1]
    assert (again.policy.name, again.request.prompt, again.request.max_new_tokens) == ("prompt_lookup", (1, 2, 2, 2), 5)
    draft.report(CommitReport(1, (9,)))  # of a request that goes on without it
    engine.target.report(CommitReport(2, (3,) * 5), EndReport(2, [], 0))
    generation = ended(events)
    assert (generation.tokens, generation.losses) == ((2, 2, 2, 3, 3, 3, 3, 3), 1)
