from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.ssd_head import SsdHead
from swiftspec.policies.effects import Commit, DraftForward, KeepKV, PeerError, Role, Send, TargetForward, Verdict
from tests.policies.fakes import VOCAB_SIZE, FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Run, Schedule, drive, run_alone, schedules


@st.composite
def shapes(draw: st.DrawFn) -> SsdHead:
    num_draft_tokens = draw(st.integers(1, 5))
    return SsdHead(
        num_draft_tokens=num_draft_tokens,
        branches=num_draft_tokens + 1 + draw(st.integers(0, 2 * VOCAB_SIZE)),
        acceptance=draw(st.sampled_from((0.1, 0.5, 0.8, 0.99))),
    )


def driven(shape: SsdHead, request: Request, draft: FakeDraft, schedule: Schedule | None = None) -> Run:
    return drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)


@settings(max_examples=200, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: SsdHead, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    assert driven(shape, request, draft, schedule).output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_only_what_was_read_after_its_verdict_joins_the_prefix(
    shape: SsdHead, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    """Before it the head has its own hidden states at best."""
    run = driven(shape, request, draft, schedule)
    own = run.by(Role.DRAFT)
    slots: list[int] = []  # index of the event that filled each tree slot
    for index, event in enumerate(own):
        if isinstance(event.effect, DraftForward):
            slots += [index] * len(event.effect.rows)
        elif isinstance(event.effect, KeepKV):
            kept = [slots[slot] for slot in event.effect.slots]
            verdicts = [number for number in range(index) if isinstance(own[number].answer, Verdict)]
            assert all(number > max(verdicts) for number in kept[: event.effect.num_verified])
            slots = kept[event.effect.num_verified :]


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts())
def test_a_prepared_chain_is_sent_at_once_and_any_other_after_its_forwards(
    shape: SsdHead, request: Request, draft: FakeDraft
) -> None:
    own = driven(shape, request, draft).by(Role.DRAFT)
    for start, event in enumerate(own):
        if isinstance(event.answer, Verdict) and event.answer.tokens:
            since = own[start + 1 :]
            until = next(index for index, other in enumerate(since) if isinstance(other.effect, Send))
            kinds = [type(other.effect) for other in since[:until]]
            just_in_time = [DraftForward, KeepKV, *[DraftForward] * (shape.num_draft_tokens - 1)]
            prepared = any(event.known in other.paths for other in own[:start])
            assert kinds == ([] if prepared else just_in_time)


@settings(max_examples=50, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts())
def test_a_verdict_follows_the_kv_that_its_features_are_of(shape: SsdHead, request: Request, draft: FakeDraft) -> None:
    own = driven(shape, request, draft).by(Role.TARGET)
    effects = [event.effect for event in own if isinstance(event.effect, Send | KeepKV | TargetForward | Commit)]
    for before, after in pairwise(effects):
        if isinstance(after, Send) and isinstance(after.message, Verdict) and after.message.tokens:
            assert isinstance(before, KeepKV)
            assert before.num_verified == len(after.message.tokens)


def test_right_draft_needs_one_forward_more_than_its_branches_a_round() -> None:
    target = FakeTarget(seed=2)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    run = driven(SsdHead(num_draft_tokens=3, branches=8), Request(prompt=(1, 2), max_new_tokens=17), draft)
    assert len(run.of(TargetForward)) == 5
    rounds = [event for event in run.by(Role.DRAFT) if isinstance(event.effect, Send)]
    # The first chain just in time: its first forward reads the prompt's last token.
    assert len(run.of(DraftForward)) == 3 + 4 * len(rounds)


def test_a_verdict_before_that_of_the_prompt_is_refused() -> None:
    program = SsdHead().programs(Request(prompt=(1, 2), max_new_tokens=8))[Role.DRAFT]
    with pytest.raises(PeerError, match="expected the verdict of a prompt"):
        list(run_alone(program, messages=[Verdict((3,))]))


def test_rows_are_as_many_as_the_shape_says() -> None:
    shape = SsdHead(num_draft_tokens=3, branches=4)
    target = FakeTarget(seed=2)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    run = driven(shape, Request(prompt=(1, 2), max_new_tokens=24), draft)
    most = max(len(event.effect.rows) for event in run.of(DraftForward))
    assert most == shape.expand_rows == 5  # a whole chain, the bonus token, and the next chain's last one
