"""Trees drafted level by level: EAGLE-2's, Sequoia's, EasySpec's and those of heads."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import DraftForward, KeepKV, Role, TargetForward
from swiftspec.policies.trees.eagle2 import Eagle2Tree, EasySpec
from swiftspec.policies.trees.heads import HeadChain, HeadTree
from swiftspec.policies.trees.sequoia import SequoiaTree, static_tree
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Event, Run, drive, scores_below

dynamic = st.builds(Eagle2Tree, verify_rows=st.integers(2, 12), top_k=st.integers(1, 6), depth=st.integers(1, 5))
fuzzy = st.builds(EasySpec, verify_rows=st.integers(2, 12), top_k=st.integers(1, 6), depth=st.integers(1, 5))
heads = st.builds(HeadTree, verify_rows=st.integers(2, 12), top_k=st.integers(1, 6), depth=st.integers(1, 5))
chains = st.builds(HeadChain, num_draft_tokens=st.integers(1, 6))
static = st.builds(
    SequoiaTree,
    verify_rows=st.integers(2, 12),
    depth=st.integers(1, 6),
    rank_acceptance=st.sampled_from(((0.6, 0.2, 0.1), (0.9,), (0.3, 0.3, 0.3), (0.5, 0.0, 0.0))),
)


@settings(max_examples=400, deadline=None)
@given(policy=dynamic | static | fuzzy | heads | chains, request=requests(), draft=drafts())
def test_output_is_the_targets_own_under_any_acceptance(policy: Policy, request: Request, draft: FakeDraft) -> None:
    run = drive(policy, request, target=draft.target, draft=draft, forgetful=True)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=dynamic, request=requests(), draft=drafts())
def test_dynamic_tree_forwards_its_levels_and_verifies_the_best_of_them(
    shape: Eagle2Tree, request: Request, draft: FakeDraft
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, forgetful=True)
    for forwards, verification in rounds(run):
        assert len(forwards) == 1 + shape.depth
        known = len(verification.known)
        for event in forwards[1:]:
            assert len(event.effect.rows) <= shape.top_k
        for above, level in pairwise(forwards):
            # A level is below the one above it.
            assert {path[:-1] for path in level.paths} <= set(above.paths)
        scores = scores_below(verification.known, forwards)
        # Best first, so that an answer for the first rows only is one for the best of them.
        chosen = [scores[path] for path in verification.paths]
        assert chosen == sorted(scores.values(), reverse=True)[: shape.verify_rows]
        assert min(map(len, verification.paths)) == known


@settings(max_examples=100, deadline=None)
@given(shape=fuzzy | heads, request=requests(), draft=drafts())
def test_tree_that_is_not_exact_begins_with_what_is_and_keeps_nothing_else(
    shape: Eagle2Tree, request: Request, draft: FakeDraft
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, forgetful=True)
    exact = [forwards[0] for forwards, _ in rounds(run)]
    for forwards, _ in rounds(run):
        assert [event.effect.fuzzy for event in forwards] == [False] + [shape.fuzzy] * shape.depth
    kept = [event.effect.slots for event in run.of(KeepKV) if event.effect.role is Role.DRAFT]
    assert kept == [tuple(range(len(event.effect.rows))) for event in exact[: len(kept)]]


@settings(max_examples=100, deadline=None)
@given(shape=static, request=requests())
def test_static_tree_is_the_same_every_round(shape: SequoiaTree, request: Request) -> None:
    target = FakeTarget(seed=1)
    draft = FakeDraft(target=target, ranks=(0, 1, 3), steepness=4, seed=2)
    run = drive(shape, request, target=target, draft=draft, forgetful=True)
    depths = [
        sorted(len(path) - len(verification.known) for path in verification.paths) for _, verification in rounds(run)
    ]
    expected = sorted(node.depth for node in static_tree(shape.rank_acceptance, shape.verify_rows, shape.depth))
    assert depths == [expected] * len(depths)


def rounds(run: Run) -> Iterator[tuple[list[Event[DraftForward]], Event[TargetForward]]]:
    """The draft forwards before each verification, and that."""
    before = 0
    for verification in run.of(TargetForward):
        until = [id(event) for event in run.events].index(id(verification))
        yield Run(events=run.events[before:until]).of(DraftForward), verification
        before = until


@pytest.mark.parametrize("policy", [Eagle2Tree, EasySpec, HeadChain, HeadTree, SequoiaTree])
def test_search_space_holds_distinct_shapes(policy: type[Policy]) -> None:
    space = list(policy.search_space())
    assert len(set(space)) == len(space)


@pytest.mark.parametrize("shares", [(), (0.5, 1.2), (-0.1,)])
def test_acceptance_that_is_none_is_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"rank_acceptance is .*; expected probabilities"):
        SequoiaTree(rank_acceptance=shares)
