from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.pearl import Pearl
from swiftspec.policies.effects import DraftForward, Role, Send, TargetForward, Verdict
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Run, Schedule, drive, schedules

shapes = st.builds(Pearl, num_draft_tokens=st.integers(1, 9))


@settings(max_examples=300, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: Pearl, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_every_round_drafts_one_window(shape: Pearl, request: Request, draft: FakeDraft, schedule: Schedule) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    own = [event.effect for event in run.by(Role.DRAFT) if isinstance(event.effect, DraftForward | Send)]
    sends = [-1, *[index for index, effect in enumerate(own) if isinstance(effect, Send)]]
    assert {after - before - 1 for before, after in pairwise(sends)} == {shape.num_draft_tokens}


@settings(max_examples=100, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_window_is_pending_after_its_first_token_was_verified_and_lost_otherwise(
    shape: Pearl, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    rows = [len(event.effect.rows) for event in run.of(TargetForward)]
    assert rows[0] == 1
    for verified, following, verdict in zip(rows, rows[1:], verdicts(run), strict=False):
        # All of what was pending and the token behind it: a window of which the first token is verified is left.
        passed = len(verdict.tokens) == verified and following > 1
        assert following == (shape.num_draft_tokens if passed else 1)


def verdicts(run: Run) -> list[Verdict]:
    messages = [event.effect.message for event in run.of(Send)]
    return [message for message in messages if isinstance(message, Verdict)]


def test_perfect_draft_brings_a_window_per_round() -> None:
    target = FakeTarget(seed=5)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    run = drive(Pearl(num_draft_tokens=4), Request(prompt=(1, 2), max_new_tokens=13), target=target, draft=draft)
    assert [len(event.effect.rows) for event in run.of(TargetForward)] == [1, 4, 4, 4]
    assert [len(verdict.tokens) for verdict in verdicts(run)] == [1, 4, 4]  # and 4 more with the stop


def test_useless_draft_brings_a_token_per_round() -> None:
    target = FakeTarget(seed=5)
    draft = FakeDraft(target=target, ranks=(None,), steepness=4, seed=1)
    run = drive(Pearl(num_draft_tokens=4), Request(prompt=(1, 2), max_new_tokens=6), target=target, draft=draft)
    assert [len(event.effect.rows) for event in run.of(TargetForward)] == [1] * 6


def test_search_space_holds_distinct_shapes() -> None:
    space = list(Pearl.search_space())
    assert len(set(space)) == len(space)


def test_shape_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens is 0; expected at least 1"):
        Pearl(num_draft_tokens=0)
