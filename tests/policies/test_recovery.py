from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import POLICIES, Layout, Request
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import Prefill, Receive, Send, Stop, TargetExit, TargetForward
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.faults import SHAPES, Fate, Faults, Outage, World, faults, small

fallbacks = st.sampled_from((Autoregressive(), PromptLookup(num_draft_tokens=2)))
GOOD_DRAFT = FakeDraft(target=FakeTarget(seed=1), ranks=(0, 0, 0, 1), steepness=16, seed=2)
LONG = Request(prompt=(3, 1, 4, 1, 5), max_new_tokens=200)
# Until a draft that is there is taken back: the longest pause between two probes, and an exchange of messages.
BACK_WITHIN = 80 + 60
REJOINING = [name for name in SHAPES if not sends_features(small(name))]


def test_every_policy_with_one_target_and_a_draft_of_its_own_is_tried() -> None:
    disaggregated = {name for name, policy in POLICIES.items() if policy.layout is Layout.DISAGGREGATED}
    assert disaggregated - {"dsi"} == set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=120, deadline=None)
@given(request=requests(), draft=drafts(), faults=faults(), fallback=fallbacks)
def test_output_is_the_targets_own_whatever_is_lost_late_or_nonsense(
    name: str, request: Request, draft: FakeDraft, faults: Faults, fallback: Autoregressive | PromptLookup
) -> None:
    world = World(small(name), request, draft, faults, fallback).run()
    assert world.output == draft.target.output(request)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=30, deadline=None)
@given(request=requests(), draft=drafts(), faults=faults())
def test_target_waits_one_patience_at_most_between_forwards(
    name: str, request: Request, draft: FakeDraft, faults: Faults
) -> None:
    world = World(small(name), request, draft, faults, Autoregressive()).run()
    waited = 0
    for moment in world.moments:
        waited = 0 if isinstance(moment.effect, TargetForward | TargetExit) else waited + moment.waited
        # Effects between the waits take ticks, and a wait may end as late as the draft's turn does.
        assert waited <= faults.patience + 10 * max(faults.bursts)


def alone_at(world: World, tick: int) -> bool:
    return [moment.alone for moment in world.moments if moment.tick <= tick][-1]


@pytest.mark.parametrize("name", REJOINING)
@settings(max_examples=12, deadline=None)
@given(start=st.integers(0, 150), ticks=st.integers(1, 250), forgets=st.booleans(), alone=st.booleans())
def test_a_draft_that_is_back_is_soon_taken_back(name: str, start: int, ticks: int, forgets: bool, alone: bool) -> None:
    outage = Outage(start=start, ticks=ticks, forgets=forgets)
    world = World(small(name), LONG, GOOD_DRAFT, Faults(outages=(outage,), alone=alone), Autoregressive()).run()
    assert world.output == GOOD_DRAFT.target.output(LONG)
    # A short absence need not have been noticed when it ends: the target may still be in its patience.
    back = start + max(ticks, Faults().patience) + BACK_WITHIN
    assert world.moments[-1].tick > back, "the request was long enough to see it"
    assert not alone_at(world, back)
    assert not world.target_part.lost
    assert world.target_part.num_losses <= 1


@pytest.mark.parametrize("name", REJOINING)
@settings(max_examples=12, deadline=None)
@given(faults=faults(until=300))
def test_once_nothing_goes_wrong_any_more_both_are_together(name: str, faults: Faults) -> None:
    faults = replace(faults, patience=60, bursts=(1,))  # a patience is worth something if a round fits into it
    world = World(small(name), LONG, GOOD_DRAFT, faults, Autoregressive()).run()
    assert world.output == GOOD_DRAFT.target.output(LONG)
    mended = max([faults.until, *[outage.start + outage.ticks for outage in faults.outages]])
    # What is late by then comes within 150 ticks; one more loss may follow from it, and a patience from that.
    together = [moment.alone for moment in world.moments if moment.tick > mended + 150 + faults.patience + BACK_WITHIN]
    assert not any(together)


@pytest.mark.parametrize("name", REJOINING)
def test_nothing_is_computed_again_when_the_draft_was_only_slow(name: str) -> None:
    outage = Outage(start=60, ticks=100, forgets=False)
    world = World(small(name), LONG, GOOD_DRAFT, Faults(outages=(outage,)), Autoregressive()).run()
    prefills = [moment.effect for moment in world.moments if isinstance(moment.effect, Prefill)]
    assert [len(effect.tokens) for effect in prefills] == [len(LONG.prompt) - 1, 1]
    assert world.target_part.num_losses == 1
    assert not world.target_part.lost


@pytest.mark.parametrize("name", SHAPES.keys() - set(REJOINING))
@pytest.mark.parametrize("forgets", [False, True])
def test_a_draft_whose_features_have_a_gap_stays_away(name: str, forgets: bool) -> None:
    outage = Outage(start=60, ticks=100, forgets=forgets)
    world = World(small(name), LONG, GOOD_DRAFT, Faults(outages=(outage,)), Autoregressive()).run()
    assert world.output == GOOD_DRAFT.target.output(LONG)
    assert world.target_part.num_losses == 1
    assert not alone_at(world, outage.start)
    assert world.target_part.lost
    sent = [moment.effect.message for moment in world.moments if moment.alone and isinstance(moment.effect, Send)]
    assert sent == [Stop()]


def test_target_probes_less_and_less_at_a_draft_that_is_of_no_use() -> None:
    """It answers, but then every word is lost: half of the time at least goes into decoding alone."""
    mute = Faults(to_target=(Fate(), Fate(lost=True)), alone=True, patience=40)
    world = World(small("swiftspec"), LONG, GOOD_DRAFT, mute, Autoregressive()).run()
    waits = [moment for moment in world.moments if isinstance(moment.effect, Receive) and moment.answer is None]
    assert world.output == GOOD_DRAFT.target.output(LONG)
    gaps = [later.tick - earlier.tick for earlier, later in pairwise(waits)]
    assert len(gaps) > 5
    assert min(gaps[4:]) >= 80 + 40
