"""Residual sampling of chains from another process: the output has the target's law, and wrong rules are found out.

As in test_residual_law: a target and a draft over three tokens that disagree widely, the first three tokens of 2000
requests held to their exact joint law, all cases together at a level of 0.001. Groups take their steps in random order,
so that chains are as long as chance has it.
"""

import random
import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch

from swiftspec.engine.model.sampling import chain_sampler, rejection_sampler
from swiftspec.engine.model.sampling.sampler import Floats, Sampler, stream
from swiftspec.policies import POLICIES, Layout, Policy, Request, make_policy
from tests.engine.apart import generate_apart
from tests.engine.tables import random_pair
from tests.laws import Law, Tokens, joint_law, p_value

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES: dict[str, dict[str, float]] = {
    "minedraft": {"num_draft_tokens": 2},
    "pearl": {"num_draft_tokens": 2},
    "amusd": {"lookahead": 1, "verify_rows": 4},
    "specbranch": {"num_draft_tokens": 2, "branches": 3},
    "ssd": {"num_draft_tokens": 2, "branches": 4},
    "ssd_head": {"num_draft_tokens": 2, "branches": 4},
    "mirror": {"num_draft_tokens": 2, "guesses": 1},
    "dsi": {"num_draft_tokens": 1, "target_groups": 2, "verify_rows": 6},
}
NAMES = [name for name, policy in POLICIES.items() if policy.layout is Layout.DISAGGREGATED and not policy.keeps_tree]
SAMPLER = Sampler(temperature=1.0, acceptance="residual")
FILTERED = Sampler(temperature=0.8, top_k=2, acceptance="residual")
REQUEST = Request(prompt=(0, 1), max_new_tokens=3, ratio_tested=True)
PAIR = random_pair(3, spread=0.8, disagreement=1.5)
NUM_REQUESTS = 2000
LEVEL = 1e-3 / (len(NAMES) + 2)


def small(name: str) -> Policy:
    return make_policy(name, **SHAPES[name])


def law(sampler: Sampler = SAMPLER) -> Law:
    def shares_after(path: Tokens) -> list[float]:
        return sampler.scores(PAIR.target.after(path)[None]).double().softmax(-1)[0].tolist()

    return joint_law(shares_after, REQUEST.prompt, REQUEST.max_new_tokens)


def sample(policy: Policy, sampler: Sampler = SAMPLER) -> list[Tokens]:
    first = zlib.crc32(str((policy, sampler)).encode())
    rng = random.Random(first)
    with torch.inference_mode():
        return [
            generate_apart(PAIR, policy, REQUEST, replace(sampler, seed=seed), rng=rng)[0]
            for seed in range(first, first + NUM_REQUESTS)
        ]


@pytest.mark.parametrize("name", NAMES)
def test_output_has_the_targets_law(name: str) -> None:
    assert p_value(sample(small(name)), law()) > LEVEL


@pytest.mark.parametrize("name", ["pearl", "specbranch"])
def test_output_has_the_law_of_the_filtered_target(name: str) -> None:
    assert p_value(sample(small(name), FILTERED), law(FILTERED)) > LEVEL


@pytest.mark.parametrize("name", ["pearl", "amusd", "ssd"])
def test_a_draft_of_the_targets_own_law_is_always_accepted(name: str) -> None:
    """All but the last token of each round is a draft's, whatever it draws."""
    pair, request = replace(PAIR, draft=PAIR.target), replace(REQUEST, max_new_tokens=40)
    rounds = {
        method: sum(
            generate_apart(pair, small(name), replace(request, ratio_tested=method == "residual"), sampler, rng=rng)[1]
            for rng in (random.Random(seed) for seed in range(5))
        )
        for method in ("follow", "residual")
        for sampler in [Sampler(temperature=1.0, acceptance=method)]
    }
    assert rounds["residual"] == rounds["follow"]


class TestWrongRules:
    """Found among as many requests as the right ones are held to."""

    def test_drawing_from_the_targets_own_shares_after_a_rejection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def accept(shares: Floats, *others: Any) -> tuple[int | None, Floats]:
            return rejection_sampler.accept(shares, *others)[0], shares

        monkeypatch.setattr(chain_sampler, "accept", accept)
        assert p_value(sample(small("amusd")), law()) < LEVEL

    def test_one_coin_for_two_positions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the released code of PEARL tests the first two tokens of a window."""
        monkeypatch.setattr(chain_sampler, "stream", lambda seed, position, **use: stream(seed, position // 2, **use))
        assert p_value(sample(small("pearl")), law()) < LEVEL
