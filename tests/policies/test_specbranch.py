import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.specbranch import SpecBranch
from swiftspec.policies.effects import Candidates, DraftForward, Role, Send, Subtree, TargetForward
from tests.policies.fakes import FakeDraft, FakeTarget, Path, drafts, requests
from tests.policies.scripted import Draft, Run, Schedule, drive, schedules

shapes = st.builds(
    SpecBranch,
    num_draft_tokens=st.integers(1, 8),
    branches=st.integers(1, 5),
    least_confidence=st.sampled_from((0.0, 0.3, 0.7, 1.0)),
)


@settings(max_examples=400, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: SpecBranch, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_target_verifies_chains_of_at_most_a_window(
    shape: SpecBranch, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    for event in run.of(TargetForward):
        assert len(event.paths) <= shape.num_draft_tokens + 1
        assert {len(path) for path in event.paths} == set(range(len(event.known), len(event.known) + len(event.paths)))


def sure_draft(target: FakeTarget, *, unsure_every: int) -> Draft:
    """Right with confidence, but now and then right only at its second choice, of two equal ones."""

    def answer(path: Path, num_candidates: int) -> Candidates:
        right = target(path)
        wrong = (right + 1) % 11
        if len(path) % unsure_every:
            return Candidates((right, wrong)[:num_candidates], (-0.01, -5.0)[:num_candidates])
        return Candidates((wrong, right)[:num_candidates], (-0.7, -0.7)[:num_candidates])

    return answer


def windows(run: Run) -> list[Subtree]:
    messages = [event.effect.message for event in run.by(Role.DRAFT) if isinstance(event.effect, Send)]
    return [message for message in messages if isinstance(message, Subtree)]


def test_window_ends_before_a_token_the_draft_is_unsure_of_and_the_fork_saves_it() -> None:
    target = FakeTarget(seed=4)
    draft = sure_draft(target, unsure_every=5)
    shape = SpecBranch(num_draft_tokens=8, branches=4, least_confidence=0.6)
    run = drive(shape, Request(prompt=(1, 2), max_new_tokens=40), target=target, draft=draft)
    # The draft's first choice is wrong at every fifth token, but no verification is cut short: the fork holds the right
    # one. Each row verified is a token of the output, but for the last verification's beyond the limit.
    rows = [len(event.effect.rows) for event in run.of(TargetForward)]
    assert sum(rows[:-1]) < 40 <= sum(rows)
    plain = drive(
        SpecBranch(num_draft_tokens=8, branches=1, least_confidence=0.0),
        Request(prompt=(1, 2), max_new_tokens=40),
        target=target,
        draft=draft,
    )
    assert len(rows) < len(plain.of(TargetForward))
    assert any(len(set(window.parents)) < len(window.parents) for window in windows(run)), "some window forks"


def test_sure_draft_never_forks() -> None:
    target = FakeTarget(seed=4)
    run = drive(
        SpecBranch(num_draft_tokens=4),
        Request(prompt=(1, 2), max_new_tokens=20),
        target=target,
        draft=sure_draft(target, unsure_every=10**6),
    )
    assert all(window.parents == tuple(range(-1, len(window.parents) - 1)) for window in windows(run))
    assert all(len(event.effect.rows) == 1 for event in run.of(DraftForward))


def test_search_space_holds_distinct_shapes() -> None:
    space = list(SpecBranch.search_space())
    assert len(set(space)) == len(space)


def test_confidence_that_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"least_confidence is 1\.5; expected a probability"):
        SpecBranch(least_confidence=1.5)
