"""Rounds of one request, and their price while several requests share every step.

Where both models share devices, a round's tokens and rows do not depend on how long forwards take. So the rounds of one
simulated request tell what any number of them cost together: draft forwards of the same level share a step, and so do
all verifications.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from swiftspec.artifacts.step_costs import StepCosts
from swiftspec.artifacts.timeline import Phase, Timeline

__all__ = ["Priced", "Round", "priced", "rounds_of"]

_MOST_BLOCKS = 400
_LEAST_BLOCKS = 24


class Round(NamedTuple):
    """Rows of every draft forward of a round, rows of its verification, and the tokens that it brings."""

    draft_rows: tuple[int, ...]
    verify_rows: int
    tokens: int


class Priced(NamedTuple):
    """Means over rounds: tokens of one request, and the parts of a round's time."""

    tokens: float
    draft_s: float
    verify_s: float
    host_s: float

    @property
    def round_s(self) -> float:
        """Seconds of a round."""
        return self.draft_s + self.verify_s + self.host_s

    @property
    def tokens_per_s(self) -> float:
        """Of one request."""
        return self.tokens / self.round_s


def rounds_of(timelines: Iterable[Timeline]) -> list[Round]:
    """Whole rounds of co-located policies; the last one of every output may be cut short, and is left out."""
    return [one for timeline in timelines for one in list(_rounds(timeline))[:-1]]


def _rounds(timeline: Timeline) -> Iterator[Round]:
    drafts: list[int] = []
    verified = 0
    for span in timeline.spans:
        if span.phase is Phase.EXPAND:
            drafts.append(span.rows)
        elif span.phase is Phase.VERIFY:
            verified = span.rows
        elif span.phase is Phase.COMMIT and verified:
            yield Round(tuple(drafts), verified, span.tokens)
            drafts, verified = [], 0


def priced(rounds: Sequence[Round], costs: StepCosts, clients: int, *, seed: int = 0) -> Priced:
    """Mean cost of rounds that clients share: each time as many of the rounds are drawn, every one as often."""
    blocks = list(_blocks(rounds, clients, seed))
    draft_s = verify_s = host_s = 0.0
    for block in blocks:
        for level in range(max(len(one.draft_rows) for one in block)):
            rows = [one.draft_rows[level] for one in block if level < len(one.draft_rows)]
            assert costs.draft is not None, "a policy that drafts has a draft's costs"
            draft_s += costs.draft(len(rows), sum(rows))
            host_s += costs.draft_host_s * _hosts(costs, len(rows))
        verify_s += costs.verify(clients, sum(one.verify_rows for one in block))
        host_s += costs.verify_host_s * _hosts(costs, clients)
    tokens = sum(one.tokens for block in blocks for one in block) / clients
    count = len(blocks)
    return Priced(tokens / count, draft_s / count, verify_s / count, host_s / count)


def _hosts(costs: StepCosts, num_requests: int) -> float:
    """Host time of requests that share a step, over that of one."""
    return 1 + (num_requests - 1) * costs.host_share


def _blocks(rounds: Sequence[Round], clients: int, seed: int) -> Iterator[list[Round]]:
    rng = np.random.default_rng(seed)
    count = min(_MOST_BLOCKS, max(_LEAST_BLOCKS, len(rounds) // clients))
    if clients == 1:
        count = len(rounds)
    shuffles = math.ceil(count * clients / len(rounds))
    order = np.concatenate([rng.permutation(len(rounds)) for _ in range(shuffles)])[: count * clients]
    for indices in order.reshape(count, clients).tolist():
        yield [rounds[index] for index in indices]
