import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.ssd import Ssd, fan_out
from swiftspec.policies.effects import DraftForward, KeepKV, Role, Send, TargetForward, Verdict
from tests.policies.fakes import VOCAB_SIZE, FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Schedule, drive, schedules


@st.composite
def shapes(draw: st.DrawFn) -> Ssd:
    num_draft_tokens = draw(st.integers(1, 6))
    return Ssd(
        num_draft_tokens=num_draft_tokens,
        branches=num_draft_tokens + 1 + draw(st.integers(0, 2 * VOCAB_SIZE)),
        miss_draft_tokens=draw(st.integers(0, 7)),
        acceptance=draw(st.sampled_from((0.1, 0.5, 0.8, 0.99))),
        miss_exponent=draw(st.sampled_from((0.3, 1.0, 2.0))),
    )


@settings(max_examples=300, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: Ssd, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_prepared_outcome_takes_no_forward_and_any_other_a_chain(
    shape: Ssd, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)
    own = run.by(Role.DRAFT)
    for start, event in enumerate(own):
        if isinstance(event.answer, Verdict) and event.answer.tokens:
            since = own[start + 1 :]
            until = next(index for index, other in enumerate(since) if isinstance(other.effect, Send))
            kinds = [type(other.effect) for other in since[:until]]
            after_miss = min(shape.num_draft_tokens, shape.miss_draft_tokens)
            just_in_time = [*[DraftForward] * after_miss, *[KeepKV] * (after_miss > 0)]
            prepared = any(event.known in other.paths for other in own[:start] if other.effect != event.effect)
            assert kinds == [KeepKV, *([] if prepared else just_in_time)]


@settings(max_examples=50, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts())
def test_every_verification_is_of_a_whole_chain_or_as_long_as_a_miss_may_take(
    shape: Ssd, request: Request, draft: FakeDraft
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, forgetful=True)
    most = shape.num_draft_tokens
    lengths = {len(event.effect.rows) - 1 for event in run.of(TargetForward)}
    assert lengths <= {most, min(most, shape.miss_draft_tokens)}


def test_after_a_miss_all_branches_are_for_the_positions_that_are_left() -> None:
    shape = Ssd(num_draft_tokens=4, branches=12, miss_draft_tokens=1)
    assert (len(shape.fan_out(4)), sum(shape.fan_out(4))) == (5, 12)
    assert shape.fan_out(1) == fan_out(1, 12, shape.acceptance)
    assert Ssd(num_draft_tokens=4, branches=12, miss_draft_tokens=0).fan_out(0) == (12,)


def test_right_draft_is_always_prepared() -> None:
    target = FakeTarget(seed=2)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    shape = Ssd(num_draft_tokens=3, branches=8)
    run = drive(shape, Request(prompt=(1, 2), max_new_tokens=17), target=target, draft=draft, forgetful=True)
    assert len(run.of(TargetForward)) == 5  # the first token of a round's 4 is of the round before
    rounds = [event for event in run.by(Role.DRAFT) if isinstance(event.effect, Send)]
    # A chain just in time at first, then a forward over the chain and one per token for all branches, every round.
    assert len(run.of(DraftForward)) == 3 + 4 * len(rounds)


def test_fan_out_is_the_papers_in_whole_numbers() -> None:
    # Theorem 12 for K = 7, 24 branches, a = 0.8, r = 1: 3.90, 3.49, 3.12, 2.79, 2.49, 2.23, 2.00, 3.99.
    assert fan_out(7, 24, 0.8) == (4, 3, 3, 3, 3, 2, 2, 4)
    assert fan_out(3, 4, 0.5) == (1, 1, 1, 1)
    # r = 0.5: 4.20, 3.62, 3.12, 2.69, 2.32, 2.00, 1.72, 4.34.
    assert fan_out(7, 24, 0.8, 0.5) == (4, 4, 3, 3, 2, 2, 2, 4)


@given(num_draft_tokens=st.integers(1, 9), spare=st.integers(0, 30), acceptance=st.floats(0.01, 0.99))
def test_fan_out_spends_its_budget_and_falls_along_the_chain(
    num_draft_tokens: int, spare: int, acceptance: float
) -> None:
    counts = fan_out(num_draft_tokens, num_draft_tokens + 1 + spare, acceptance)
    assert sum(counts) == num_draft_tokens + 1 + spare
    assert min(counts) >= 1
    assert list(counts[:-1]) == sorted(counts[:-1], reverse=True)


def test_search_space_holds_distinct_shapes() -> None:
    space = list(Ssd.search_space())
    assert len(set(space)) == len(space)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"branches": 5}, "branches is 5; expected at least 6"),
        ({"miss_draft_tokens": -1}, "miss_draft_tokens is -1; expected at least 0"),
        ({"miss_exponent": 0.0}, "miss_exponent is 0.0; expected a positive number"),
        ({"acceptance": 1.0}, "acceptance is 1.0; expected a probability between 0 and 1"),
    ],
)
def test_impossible_shapes_are_refused(shape: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ssd(**shape)  # type: ignore[arg-type]  # whole numbers where they must be
