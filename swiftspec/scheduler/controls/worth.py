"""Rows where they are worth most: the likeliest ones of all requests, while expected tokens per second rise.

As vLLM's adaptive verification: rows of all requests are ordered by the probability that they are accepted, and as many
of the first ones are verified as give the most tokens per second by the measured costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swiftspec.scheduler.controls.control import Contender
from swiftspec.scheduler.controls.draft_round import DraftRound
from swiftspec.scheduler.costs import RoundCosts

__all__ = ["Worth", "add_likeliest"]


@dataclass(frozen=True, slots=True)
class Worth:
    """The rows with the most expected tokens per second."""

    def rows(self, contenders: Sequence[Contender], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows of each contender."""
        return add_likeliest(DraftRound(contenders, costs), contenders, max_rows=max_rows)


def add_likeliest(begun: DraftRound, contenders: Sequence[Contender], *, max_rows: int) -> list[int]:
    """Rows of each contender, those that a round has already included.

    The argmax is over all numbers of rows, not up to the first fall: costs rise in stairs.
    """
    order = sorted(
        [
            (-survival, number, index)
            for index, contender in enumerate(contenders)
            for number, survival in enumerate(contender.survival[begun.rows[index] - 1 :])
        ]
    )[: max(0, max_rows - sum(begun.rows))]
    best, rows = begun.tokens / begun.seconds, list(begun.rows)
    for _, _, index in order:
        begun.add(index)
        if (goodput := begun.tokens / begun.seconds) > best:
            best, rows = goodput, list(begun.rows)
    return rows
