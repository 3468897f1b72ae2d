import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.amusd import Amusd
from swiftspec.policies.effects import DraftForward, PeerError, Poll, Receive, Role, Send, Stop, Subtree, TargetForward
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Schedule, drive, run_alone, schedules


@st.composite
def shapes(draw: st.DrawFn) -> Amusd:
    verify_rows = draw(st.integers(2, 12))
    return Amusd(lookahead=draw(st.integers(1, verify_rows - 1)), verify_rows=verify_rows)


@settings(max_examples=400, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: Amusd, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_verification_is_of_lookahead_to_verify_rows(
    shape: Amusd, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    for event in run.of(TargetForward):
        assert shape.lookahead < len(event.effect.rows) <= shape.verify_rows


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_every_draft_forward_is_sent_and_nothing_is_drafted_twice(
    shape: Amusd, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    sent = [event.effect.message for event in run.by(Role.DRAFT) if isinstance(event.effect, Send)]
    forwards = run.of(DraftForward)
    assert len(sent) == len(forwards)
    # The cache asserts that no path is computed twice while it is there; a rejected one is another path.
    assert len({event.paths[-1] for event in forwards}) == len(forwards)


def test_draft_waits_only_when_it_is_a_verification_ahead() -> None:
    target = FakeTarget(seed=3)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    shape = Amusd(lookahead=1, verify_rows=4)
    schedule = Schedule(bursts=(1, 30), delays=(0,))  # the draft, second, is far quicker than its target
    run = drive(shape, Request(prompt=(1,), max_new_tokens=20), target=target, draft=draft, schedule=schedule)
    assert any(isinstance(event.effect, Receive) for event in run.by(Role.DRAFT))
    assert max(len(event.effect.rows) for event in run.of(TargetForward)) == 4


def test_stale_tokens_are_not_verified() -> None:
    """Behind the root 7 at position 0: 8, then 9 of a chain that was rejected, then what continues 8."""
    messages = [
        Subtree(0, (7, 8), (-1, 0)),
        Subtree(1, (5, 9), (-1, 0)),  # another predecessor
        Subtree(0, (7, 9), (-1, 0)),  # another position
        Subtree(1, (8, 6), (-1, 0)),
    ]
    program = Amusd(lookahead=2).programs(Request(prompt=(7,), max_new_tokens=9))[Role.TARGET]
    effects = list(run_alone(program, messages=[*messages, None], target=lambda row: row.token + 1))
    (forward,) = [effect for effect in effects if isinstance(effect, TargetForward)]
    assert [row.token for row in forward.rows] == [7, 8, 6]


def test_a_draft_that_sends_only_stale_tokens_is_not_listened_to_for_ever() -> None:
    program = Amusd(verify_rows=4).programs(Request(prompt=(7,), max_new_tokens=9))[Role.TARGET]
    with pytest.raises(PeerError, match="expected a token after 7, got 17 others"):
        list(run_alone(program, messages=[Subtree(5, (8, 9), (-1, 0))] * 99))


def test_stop_ends_the_draft() -> None:
    program = Amusd().programs(Request(prompt=(7,), max_new_tokens=9))[Role.DRAFT]
    effects = list(run_alone(program, messages=[Stop(), None]))
    assert [type(effect) for effect in effects] == [Poll]


def test_search_space_holds_distinct_shapes() -> None:
    space = list(Amusd.search_space())
    assert len(set(space)) == len(space)


def test_target_that_would_wait_for_more_than_it_verifies_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lookahead is 8; expected less than verify_rows \(8\)"):
        Amusd(lookahead=8, verify_rows=8)
