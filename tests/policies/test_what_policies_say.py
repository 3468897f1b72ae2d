"""What a policy says of itself is what its programs do."""

import random
from collections import Counter

import pytest

from swiftspec.policies import POLICIES, Request, policy_class
from swiftspec.policies.base import TargetOnly, shape_of
from swiftspec.policies.effects import Candidates, TargetExit, TargetForward
from tests.policies.fakes import Path
from tests.policies.scripted import drive
from tests.policies.test_law import small

# Prompts that repeat, so that those who draft from the text find several continuations.
PROMPT = tuple(random.Random(3).choices((1, 2), k=40))


def target(path: Path) -> int:
    return 1 + sum(path[-3:]) % 2


def draft(path: Path, num_candidates: int) -> Candidates:
    likely, other = target(path), 3 - target(path)
    tokens = (likely, other, 5)[:num_candidates]
    return Candidates(tokens, (-0.5, -1.0, -3.0)[: len(tokens)])


@pytest.mark.parametrize("name", POLICIES)
def test_verifications_branch_where_a_policy_says_so(name: str) -> None:
    policy = small(name)
    request = Request(prompt=PROMPT, max_new_tokens=60, mask_token=9)
    run = drive(policy, request, target=target, draft=draft, forgetful=True)
    most_children = max(
        max(Counter(path[:-1] for path in event.paths).values(), default=0)
        for kind in (TargetForward, TargetExit)
        for event in run.of(kind)
    )
    assert (most_children > 1) == policy.verifies_trees


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_said_agrees_with_the_shape(name: str) -> None:
    for policy in policy_class(name).search_space():
        assert policy.chain_tokens == shape_of(policy).get("num_draft_tokens", 0)
        assert not (policy.verifies_trees and policy.chain_tokens)
        assert policy.plain == (isinstance(policy, TargetOnly) and policy.target_rows == 1)
        assert policy.chain_tokens >= 0
    shapes = list(policy_class(name).host_shapes())
    assert shapes
    assert {type(shape) for shape in shapes} == {policy_class(name)}
