import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.mirror import Mirror
from swiftspec.policies.effects import (
    Candidates,
    DraftForward,
    PeerError,
    Poll,
    Receive,
    Role,
    Send,
    Subtree,
    TargetExit,
    TargetFinish,
    TargetForward,
    Verdict,
)
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Schedule, drive, run_alone, schedules, subtree_paths

shapes = st.builds(Mirror, num_draft_tokens=st.integers(1, 6), guesses=st.integers(1, 4))


@settings(max_examples=300, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: Mirror, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_guesses_leave_between_the_halves_and_name_no_token_of_the_chain(
    shape: Mirror, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)
    own = run.by(Role.TARGET)
    for start, event in enumerate(own):
        if isinstance(event.effect, TargetExit):
            sent = own[start + 1].effect
            assert isinstance(sent, Send)
            assert isinstance(own[start + 2].effect, TargetFinish)
            window, hypotheses = len(event.effect.rows), subtree_paths(sent.message, event.known)
            assert len(hypotheses) <= window * (1 + shape.guesses)
            assert len(set(hypotheses)) == len(hypotheses)  # no guess is what the chain has at that place
    assert not run.of(TargetForward)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_an_outcome_that_was_guessed_takes_no_forward(
    shape: Mirror, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)
    own = run.by(Role.DRAFT)
    guessed: list[tuple[int, ...]] = []
    for start, event in enumerate(own):
        if isinstance(event.effect, Receive | Poll) and isinstance(event.answer, Subtree):
            guessed = subtree_paths(event.answer, event.known)[shape.target_rows :]
        if isinstance(event.answer, Verdict) and event.answer.tokens:
            since = own[start + 1 :]
            until = next(index for index, other in enumerate(since) if isinstance(other.effect, Send))
            forwards = [other for other in since[:until] if isinstance(other.effect, DraftForward)]
            assert len(forwards) == (0 if event.known in guessed else shape.num_draft_tokens)


def test_right_guesses_hide_the_draft_wholly() -> None:
    target = FakeTarget(seed=2)
    # Its second choice follows a whole chain, and the chain is its first: the half of the target knows what comes.
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    run = drive(
        Mirror(num_draft_tokens=3, guesses=1),
        Request(prompt=(1, 2), max_new_tokens=17),
        target=target,
        draft=draft,
        forgetful=True,
    )
    assert len(run.of(TargetExit)) == 5
    rounds = [event for event in run.by(Role.DRAFT) if isinstance(event.effect, Send)]
    assert len(run.of(DraftForward)) == 3 + 4 * len(rounds)


def test_guesses_below_another_chain_are_refused() -> None:
    program = Mirror(num_draft_tokens=1, guesses=1).programs(Request(prompt=(1, 2), max_new_tokens=4))[Role.DRAFT]
    stray = Subtree(1, (2, 9, 5), (-1, 0, 1))
    with pytest.raises(PeerError, match="expected up to 2 guesses below"):
        list(run_alone(program, messages=[Verdict(()), stray], draft=lambda _: Candidates((3,), (-0.1,))))


def test_search_space_holds_distinct_shapes() -> None:
    space = list(Mirror.search_space())
    assert len(set(space)) == len(space)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="guesses is 0; expected at least 1"):
        Mirror(guesses=0)
