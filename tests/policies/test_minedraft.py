"""MineDraft: a request's own rounds are serial ones, and those of several requests alternate."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.minedraft import MineDraft
from swiftspec.policies.effects import DraftForward, Role, Send, TargetForward
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Schedule, drive, schedules

shapes = st.builds(MineDraft, num_draft_tokens=st.integers(1, 9))


@settings(max_examples=200, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_and_every_round_drafts_one_chain(
    shape: MineDraft, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    assert run.output == draft.target.output(request)
    own = [event.effect for event in run.by(Role.DRAFT) if isinstance(event.effect, DraftForward | Send)]
    sends = [-1, *[index for index, effect in enumerate(own) if isinstance(effect, Send)]]
    assert {after - before - 1 for before, after in pairwise(sends)} == {shape.num_draft_tokens}


def test_perfect_draft_brings_a_chain_and_a_bonus_token_per_round() -> None:
    target = FakeTarget(seed=5)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    run = drive(MineDraft(num_draft_tokens=4), Request(prompt=(1, 2), max_new_tokens=15), target=target, draft=draft)
    assert [len(event.effect.rows) for event in run.of(TargetForward)] == [5, 5, 5]
