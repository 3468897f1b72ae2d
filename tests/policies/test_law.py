"""Every policy's sampled output has the target's distribution, whatever the draft proposes and whichever role is slow.

A target over three tokens, drawn by noise keyed by seed and position as the engine's is; a draft that knows nothing of
it; any interleaving and any delays. For each policy of the registry the first three tokens of 2000 requests are held to
their exact joint law by a chi-square test. Each policy has seeds of its own, so the tests are independent; the level
is shared out among them (Bonferroni), so that all policies pass with probability 0.999 if all are right. A policy whose
law is off by a total variation of 0.1 or more fails with a probability of 0.99 or more.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import pytest

from swiftspec.policies import POLICIES, Policy, Request, colocated, make_policy
from swiftspec.policies.effects import Candidates, Subtree
from tests.laws import Law, Tokens, detectable, every_text, joint_law, p_value
from tests.policies.scripted import Schedule, drive

VOCAB_SIZE = 3
REQUEST = Request(prompt=(2, 1), max_new_tokens=3)
NUM_REQUESTS = 2000
LEVEL = 1e-3 / len(POLICIES)
DETECTED = 0.1
# Small ones: quick, and three tokens take several rounds. Any other policy comes as it is.
SHAPES: dict[str, dict[str, Any]] = {
    "prompt_lookup": {"num_draft_tokens": 2},
    "suffix_decoding": {"verify_rows": 4, "branches": 2},
    "serial_chain": {"num_draft_tokens": 2},
    "serial_tree": {"verify_rows": 4, "expand_rows": 2, "expansions": 2, "num_candidates": 3},
    "suffix_or_draft": {"num_draft_tokens": 2, "least_score": 0.5, "verify_rows": 4},
    "sequoia_tree": {"verify_rows": 5, "depth": 2, "rank_acceptance": (0.6, 0.3, 0.1)},
    "eagle2_tree": {"verify_rows": 5, "top_k": 2, "depth": 1},
    "easyspec": {"verify_rows": 5, "top_k": 2, "depth": 1},
    "head_chain": {"num_draft_tokens": 2},
    "head_tree": {"verify_rows": 5, "top_k": 2, "depth": 1},
    "parallel_chain": {"num_draft_tokens": 2},
    "parallel_tree": {"verify_rows": 4, "num_masks": 1, "num_candidates": 3},
    "pearl": {"num_draft_tokens": 2},
    "minedraft": {"num_draft_tokens": 2},
    "specbranch": {"num_draft_tokens": 2, "branches": 2},
    "amusd": {"lookahead": 1, "verify_rows": 4},
    "dsi": {"num_draft_tokens": 1, "target_groups": 2, "verify_rows": 6},
    "mirror": {"num_draft_tokens": 2, "guesses": 1},
    "ssd": {"num_draft_tokens": 2, "branches": 4},
    "ssd_head": {"num_draft_tokens": 2, "branches": 4},
    "swiftspec_chain": {"num_draft_tokens": 2, "expand_rows": 2, "num_candidates": 3, "tree_capacity": 12},
    "swiftspec": {"verify_rows": 4, "expand_rows": 2, "num_candidates": 3, "tree_capacity": 12},
    "swiftspec_parallel": {
        "verify_rows": 4,
        "expand_nodes": 2,
        "num_masks": 2,
        "num_candidates": 3,
        "tree_capacity": 12,
    },
}


def small(name: str) -> Policy:
    return make_policy(name, **SHAPES.get(name, {}))


def random_shares() -> dict[Tokens, tuple[float, ...]]:
    """Of the next token, by the last two."""
    rng = random.Random(5)
    table: dict[Tokens, tuple[float, ...]] = {}
    for last in (*every_text(VOCAB_SIZE, 1), *every_text(VOCAB_SIZE, 2)):
        weights = [exp(rng.gauss(0.0, 0.7)) for _ in range(VOCAB_SIZE)]
        table[last] = tuple(weight / sum(weights) for weight in weights)
    return table


SHARES = random_shares()


def law() -> Law:
    return joint_law(lambda path: SHARES[path[-2:]], REQUEST.prompt, REQUEST.max_new_tokens)


@dataclass(frozen=True)
class DrawnTarget:
    """The Gumbel-max rule."""

    seed: int

    def __call__(self, path: Tokens) -> int:
        noise = random.Random(hash((self.seed, len(path))))
        scores = [log(share) - log(-log(noise.random())) for share in SHARES[path[-2:]]]
        return scores.index(max(scores))


@dataclass(frozen=True)
class RandomDraft:
    """Any order of the tokens, as sure of it as may be."""

    seed: int

    def __call__(self, path: Tokens, num_candidates: int) -> Candidates:
        rng = random.Random(hash((self.seed, -1, *path)))
        tokens = rng.sample(range(VOCAB_SIZE), min(VOCAB_SIZE, num_candidates))
        return Candidates(tuple(tokens), tuple(sorted((-rng.expovariate(1.0) for _ in tokens), reverse=True)))


def random_schedule(rng: random.Random) -> Schedule:
    bursts = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
    return Schedule(bursts=bursts, delays=tuple(rng.randint(0, 8) for _ in range(rng.randint(1, 4))))


def sample(policy: Policy) -> list[Tokens]:
    first = zlib.crc32(policy.name.encode()) * NUM_REQUESTS
    outputs = []
    for seed in range(first, first + NUM_REQUESTS):
        schedule = random_schedule(random.Random(seed))
        run = drive(
            policy, REQUEST, target=DrawnTarget(seed), draft=RandomDraft(seed), schedule=schedule, forgetful=True
        )
        outputs.append(run.output)
    return outputs


@pytest.mark.parametrize("name", POLICIES)
def test_sampled_output_has_the_targets_law(name: str) -> None:
    assert p_value(sample(small(name)), law()) > LEVEL


def test_a_deviation_of_the_stated_size_is_found() -> None:
    assert detectable(law(), NUM_REQUESTS, LEVEL) < DETECTED


def test_a_policy_that_believes_its_draft_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(subtree: Subtree, choices: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Accept the first draft token, whatever the target says."""
        return (0, 1), (subtree.tokens[1], choices[1])

    monkeypatch.setattr(colocated, "follow", believe)
    assert p_value(sample(make_policy("serial_chain", num_draft_tokens=1)), law()) < LEVEL


def test_noise_that_forgets_the_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(target: DrawnTarget, path: Tokens) -> int:
        noise = random.Random(hash((target.seed, 0)))
        scores = [log(share) - log(-log(noise.random())) for share in SHARES[path[-2:]]]
        return scores.index(max(scores))

    monkeypatch.setattr(DrawnTarget, "__call__", choose)
    assert p_value(sample(small("swiftspec")), law()) < LEVEL
