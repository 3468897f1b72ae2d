"""SmartSpec (TurboSpec, arXiv 2406.14066): the draft length with the most expected tokens per second.

A round of draft length k yields for every request the bonus token and the draft tokens that survive; it costs k draft
forwards and a verification of k + 1 rows each. The paper's controller stops at the first length that is worse than the
one before; costs are no smooth curve, so all lengths are compared here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.costs import RoundCosts


class RoundGoodput(NamedTuple):
    """Expected tokens per second of a round in which every request drafts so many tokens."""

    num_draft_rows: int
    tokens_per_s: float


def goodput_by_length(demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> Iterator[RoundGoodput]:
    """Goodput of every draft length for which there is room, from 0."""
    num_sequences = len(demands)
    tokens, num_rows, draft_s = float(num_sequences), num_sequences, 0.0
    yield RoundGoodput(0, tokens / costs.verify_s(num_sequences, num_rows))
    for length, level in enumerate(zip_longest(*[demand.survival for demand in demands]), start=1):
        surviving = [survival for survival in level if survival is not None]
        tokens += sum(surviving)
        num_rows += len(surviving)
        if num_rows > max_rows:
            return
        draft_s += costs.level_s(length, len(surviving))
        yield RoundGoodput(length, tokens / (draft_s + costs.verify_s(num_sequences, num_rows)))


def _best_length(demands: Sequence[Demand], costs: RoundCosts, max_rows: int) -> int:
    """Draft length with the highest goodput; the shortest of equals."""
    found = goodput_by_length(demands, costs=costs, max_rows=max_rows)
    return max(found, key=lambda each: each.tokens_per_s).num_draft_rows


@dataclass(frozen=True, slots=True)
class Goodput(Control):
    """One draft length for all requests."""

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows of each request."""
        length = _best_length(demands, costs, max_rows)
        return [1 + min(length, len(demand.survival)) for demand in demands]


@dataclass(frozen=True, slots=True)
class GoodputPerRequest(Control):
    """The best common length, given to the requests in proportion to the acceptance of their first draft tokens."""

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows of each request."""
        length = _best_length(demands, costs, max_rows)
        acceptance = [demand.survival[0] if demand.survival else 0.0 for demand in demands]
        total = sum(acceptance)
        if not total:
            return [1] * len(demands)
        lengths = [int(0.5 + length * len(demands) * each / total) for each in acceptance]
        rows = [1 + min(each, len(demand.survival)) for each, demand in zip(lengths, demands, strict=True)]
        while sum(rows) > max(max_rows, len(rows)):  # rounding up
            rows[rows.index(max(rows))] -= 1
        return rows
