"""Residual sampling's output has the target's distribution, in every co-located policy; wrong rules are found out.

A target and a draft over three tokens that disagree widely, run by the engine's driver. For each policy the first three
tokens of 2000 requests are held to their exact joint law by a chi-square test; seeds are fixed, and each case has its
own. The level is shared out among the cases (Bonferroni), so that all pass with probability 0.999 if the rule is right.
A law that is off by a total variation of 0.1 or more fails with a probability of 0.99 or more. With 60,000 requests a
case, for which that is 0.018, the p-values at temperature 1 were 0.09 (chain), 0.92, 0.40 and 0.47 (trees).
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from swiftspec.engine.model.sampling import rejection_sampler
from swiftspec.engine.model.sampling.rejection_sampler import Proposal, RejectionSampler
from swiftspec.engine.model.sampling.sampler import Floats, Sampler
from swiftspec.policies import POLICIES, Layout, Policy, Request, make_policy
from tests.engine.tables import Grant, random_pair
from tests.laws import Law, Tokens, detectable, joint_law, p_value

pytestmark = pytest.mark.usefixtures("one_thread")

# Small ones: quick, and three tokens take several rounds. Any other policy comes as it is.
SHAPES: dict[str, dict[str, Any]] = {
    "serial_chain": {"num_draft_tokens": 2},
    "serial_tree": {"verify_rows": 4, "expand_rows": 2, "expansions": 2, "num_candidates": 3},
    "suffix_or_draft": {"num_draft_tokens": 2, "least_score": 0.5, "verify_rows": 4},
    "sequoia_tree": {"verify_rows": 5, "depth": 2, "rank_acceptance": (0.6, 0.3, 0.1)},
    "parallel_chain": {"num_draft_tokens": 2},
    "parallel_tree": {"verify_rows": 6, "least_probability": 0.15, "num_masks": 2, "num_candidates": 3},
    **{name: {"verify_rows": 5, "top_k": 2, "depth": 1} for name in ("eagle2_tree", "easyspec", "head_tree")},
    "head_chain": {"num_draft_tokens": 2},
}
NAMES = [name for name, policy in POLICIES.items() if policy.layout is Layout.COLOCATED]
SAMPLER = Sampler(temperature=1.0, acceptance="residual")
FILTERED = Sampler(temperature=0.8, top_k=2, acceptance="residual")
REQUEST = Request(prompt=(0, 1), max_new_tokens=3, mask_token=2)
PAIR = random_pair(3, spread=0.8, disagreement=1.5)
NUM_REQUESTS = 2000
ELASTIC = [name for name in NAMES if POLICIES[name].elastic]
LEVEL = 1e-3 / (len(NAMES) + 2 * len(ELASTIC) + 2)
DETECTED = 0.1


def small(name: str) -> Policy:
    return make_policy(name, **SHAPES.get(name, {}))


def law(sampler: Sampler = SAMPLER, request: Request = REQUEST) -> Law:
    def shares_after(path: Tokens) -> list[float]:
        return sampler.scores(PAIR.target.after(path)[None]).double().softmax(-1)[0].tolist()

    return joint_law(shares_after, request.prompt, request.max_new_tokens)


def sample(
    policy: Policy,
    sampler: Sampler = SAMPLER,
    *,
    num_requests: int = NUM_REQUESTS,
    request: Request = REQUEST,
    grant: Grant | None = None,
    may_draft: Callable[[], bool] | None = None,
) -> list[Tokens]:
    first = zlib.crc32(str((policy, sampler)).encode())
    seeds = range(first, first + num_requests)
    with torch.inference_mode():
        return [
            PAIR.generate(policy, request, replace(sampler, seed=seed), grant=grant, may_draft=may_draft)[0]
            for seed in seeds
        ]


@pytest.mark.parametrize("name", NAMES)
def test_output_has_the_targets_law(name: str) -> None:
    assert p_value(sample(small(name)), law()) > LEVEL


@pytest.mark.parametrize("name", ELASTIC)
def test_output_has_the_targets_law_whatever_part_of_a_verification_is_granted(name: str) -> None:
    """As beside other requests, whose rows leave less room, but not because of the tokens drawn."""
    rng = random.Random(name)
    found = sample(small(name), num_requests=1000, grant=lambda num_rows: rng.randint(1, num_rows))
    assert p_value(found, law()) > LEVEL


@pytest.mark.parametrize("name", ELASTIC)
def test_output_has_the_targets_law_under_a_control(name: str) -> None:
    """Which may decline to draft at any time; the fourth token follows three in which it may have changed its mind."""
    rng = random.Random(name)
    request = replace(REQUEST, prompt=REQUEST.prompt[:1], max_new_tokens=4)
    found = sample(
        small(name),
        num_requests=1000,
        request=request,
        grant=lambda num_rows: rng.randint(1, num_rows),
        may_draft=lambda: rng.random() < 0.7,
    )
    assert p_value(found, law(request=request)) > LEVEL


@pytest.mark.parametrize(
    "policy",
    [
        small("eagle2_tree"),
        # A later candidate without an earlier one: no planner would, but it is a tree like any other.
        make_policy("sequoia_tree", verify_rows=4, depth=2, rank_acceptance=(0.1, 0.6, 0.3)),
    ],
    ids=str,
)
def test_output_has_the_law_of_the_filtered_target(policy: Policy) -> None:
    assert p_value(sample(policy, FILTERED), law(FILTERED)) > LEVEL


def test_a_deviation_of_the_stated_size_is_found() -> None:
    assert detectable(law(), NUM_REQUESTS, LEVEL) < DETECTED
    assert detectable(law(FILTERED), NUM_REQUESTS, LEVEL) < DETECTED


class TestWrongRules:
    """Found among as many requests as the right ones are held to."""

    def assert_found(self) -> None:
        assert p_value(sample(small("eagle2_tree")), law()) < LEVEL

    def test_drawing_from_the_targets_own_shares_after_a_rejection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def accept(shares: Floats, *others: Any) -> tuple[int | None, Floats]:
            return right(shares, *others)[0], shares

        right = rejection_sampler.accept
        monkeypatch.setattr(rejection_sampler, "accept", accept)
        self.assert_found()

    def test_trying_candidates_as_if_drawn_with_replacement(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def accept(
            shares: Floats, proposal: Proposal, verified: frozenset[int], coins: np.random.Generator
        ) -> tuple[int | None, Floats]:
            for token in (token for token in proposal.tokens if token in verified):
                accepted, shares = right(shares, Proposal((token,), proposal.shares), verified, coins)
                if accepted is not None:
                    return accepted, shares
            return None, shares

        right = rejection_sampler.accept
        monkeypatch.setattr(rejection_sampler, "accept", accept)
        self.assert_found()

    def test_scoring_candidates_by_their_own_probability(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def propose(self: RejectionSampler, rows: Any, logits: torch.Tensor, num_candidates: int) -> Any:
            logprobs = self._sampler.scores(logits).log_softmax(-1)
            return [
                answer._replace(logprobs=tuple(own[list(answer.tokens)].tolist()))
                for own, answer in zip(logprobs, right(self, rows, logits, num_candidates), strict=True)
            ]

        right = RejectionSampler.propose
        monkeypatch.setattr(RejectionSampler, "propose", propose)
        self.assert_found()
