"""Rows where they are worth most: the likeliest ones of all requests, while expected tokens per second rise.

As vLLM's adaptive verification: rows of all requests are ordered by the probability that they are accepted, and as many
of the first ones are verified as give the most tokens per second by the measured costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.controls.draft_round import DraftRound
from swiftspec.scheduler.costs import RoundCosts


@dataclass(frozen=True, slots=True)
class Worth(Control):
    """The rows with the most expected tokens per second."""

    weighs_drafts: ClassVar[bool] = True

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows of each request."""
        return add_likeliest(DraftRound(demands, costs), demands, costs=costs, max_rows=max_rows)


def add_likeliest(begun: DraftRound, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
    """Rows of each request, those that a round has already included.

    The argmax is over all numbers of rows, not up to the first fall: costs rise in stairs.
    """
    rows = list(begun.rows)
    order = [
        (-survival, level, index)
        for index, demand in enumerate(demands)
        for level, survival in enumerate(demand.survival[rows[index] - 1 :], start=rows[index])
    ]
    order.sort()
    # Hundreds of rows in every round, while a device waits: no call that is not needed.
    verify_s, level_s = costs.verify_s, costs.level_s
    drafting, draft_s, tokens = list(begun.drafting), begun.draft_s, begun.tokens
    num_sequences, num_rows = len(rows), sum(rows)
    best, num_best = tokens / begun.seconds, 0
    for taken, (negative, level, _) in enumerate(order[: max(0, max_rows - num_rows)], start=1):
        count = drafting[level]
        drafting[level] = count + 1
        draft_s += level_s(level, count + 1) - (level_s(level, count) if count else 0.0)
        tokens -= negative
        goodput = tokens / (draft_s + verify_s(num_sequences, num_rows + taken))
        if goodput > best:
            best, num_best = goodput, taken
    for _, _, index in order[:num_best]:
        rows[index] += 1
    return rows
