import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import POLICIES, Layout, Request
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import TargetExit, TargetForward
from swiftspec.policies.prompt_lookup import PromptLookup
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.faults import SHAPES, Faults, World, faults, small

fallbacks = st.sampled_from((Autoregressive(), PromptLookup(num_draft_tokens=2)))
GOOD_DRAFT = FakeDraft(target=FakeTarget(seed=1), ranks=(0, 0, 0, 1), steepness=16, seed=2)
LONG = Request(prompt=(3, 1, 4, 1, 5), max_new_tokens=400)


def test_every_policy_with_one_target_and_a_draft_of_its_own_is_tried() -> None:
    disaggregated = {name for name, policy in POLICIES.items() if policy.layout is Layout.DISAGGREGATED}
    assert disaggregated - {"dsi"} == set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=250, deadline=None)
@given(request=requests(), draft=drafts(), faults=faults(), fallback=fallbacks)
def test_output_is_the_targets_own_whatever_is_lost_late_or_nonsense(
    name: str, request: Request, draft: FakeDraft, faults: Faults, fallback: Autoregressive | PromptLookup
) -> None:
    world = World(small(name), request, draft, faults, fallback).run()
    assert world.output == draft.target.output(request)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=60, deadline=None)
@given(request=requests(), draft=drafts(), faults=faults())
def test_target_waits_one_patience_at_most_between_forwards(
    name: str, request: Request, draft: FakeDraft, faults: Faults
) -> None:
    world = World(small(name), request, draft, faults, Autoregressive()).run()
    waited = 0
    for moment in world.moments:
        waited = 0 if isinstance(moment.effect, TargetForward | TargetExit) else waited + moment.waited
        assert waited <= faults.patience + 10  # ticks of effects between the waits
