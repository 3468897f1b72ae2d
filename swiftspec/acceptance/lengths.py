"""Tokens per round from rates, and the rate that has given tokens per round: of chains, and of trees.

Of a mean length alone the same conditional rate is assumed at every position. A tree holds the likeliest nodes, as
EAGLE's do: every step continues the best `top_k` of the last one by `top_k` candidates each, and the best nodes of all
steps are verified.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.model import candidate_shares
from swiftspec.acceptance.numerics import root

# Probability that a head's second candidate is right when the first is wrong, as in an acceptance model: least squares
# over the trees of two EAGLE-3 heads whose chains are known as well (tests/acceptance/test_lengths.py fits it again).
_RUNNER_UP = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What a round drafts."""

    steps: int  # draft tokens of a chain; levels of a tree
    top_k: int = 1  # children of a node; 1 is a chain
    rows: int | None = None  # of a verification, the last token's included; those of a chain if not given

    def __str__(self) -> str:
        if self.top_k == 1:
            return f"chains of {self.steps}"
        return f"trees of {self.steps} steps, top-k {self.top_k} and {self.rows} rows"

    def survival(self, conditional: Sequence[float]) -> tuple[float, ...]:
        """Share of rounds that accept at least 1, 2, .. draft tokens, given rates of first candidates by position."""
        if self.top_k == 1:
            return unconditional_rates(conditional[: self.steps])
        parents: npt.NDArray[np.float64] = np.ones(1)
        levels: list[npt.NDArray[np.float64]] = []
        for rate in conditional[: self.steps]:
            shares = candidate_shares(np.array(rate), _RUNNER_UP, self.top_k)
            nodes = np.sort(np.outer(parents, shares).ravel())[::-1]
            levels.append(nodes)
            parents = nodes[: self.top_k]
        verified = (self.rows or self.steps + 1) - 1
        depth = np.concatenate([np.full(len(nodes), level) for level, nodes in enumerate(levels)])
        every = np.concatenate(levels)
        kept = np.argsort(-every, kind="stable")[:verified]
        reached = np.bincount(depth[kept], weights=every[kept], minlength=len(levels))
        return tuple(np.minimum(reached, 1.0).tolist())

    def rate(self, tokens_per_round: float) -> float:
        """The conditional rate that, the same at every position, yields so many tokens, the bonus token counted."""
        accepted = tokens_per_round - 1
        if accepted <= 0:
            return 0.0
        if accepted >= self.steps:
            return 1.0
        return root(lambda rate: sum(self.survival([rate] * self.steps)) - accepted, 0.0, 1.0)

    def even_survival(self, tokens_per_round: float) -> tuple[float, ...]:
        """`survival` at the one rate of so many tokens, the bonus token counted."""
        return self.survival([self.rate(tokens_per_round)] * self.steps)


def conditional_rates(unconditional: Sequence[float]) -> tuple[float, ...]:
    """Share of the rounds that accepted all before a position, by position; 0 where none did."""
    return tuple(after / before if before else 0.0 for before, after in pairwise((1.0, *unconditional)))


def unconditional_rates(conditional: Iterable[float]) -> tuple[float, ...]:
    """Share of all rounds that accept up to a position, by position."""
    return tuple(accumulate(conditional, mul))
