"""Rows where they are worth most: the likeliest ones of all requests, while expected tokens per second rise.

As vLLM's adaptive verification: rows of all requests are ordered by the probability that they are accepted, and as many
of the first ones are verified as give the most tokens per second by the measured costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.costs import RoundCosts


class DraftRound:
    """A round while a control divides its rows: those that are given so far, at first one for each request.

    rows: of each request's verification.
    seconds: of the round, drafting included.
    draft_s: of its drafting.
    drafting: requests that draft each level, from 1.
    tokens: expected of all requests, bonus tokens included. tokens_of: of each.
    """

    def __init__(self, demands: Sequence[Demand], costs: RoundCosts) -> None:
        self.rows = [1] * len(demands)
        self.seconds = costs.verify_s(len(demands), len(demands))
        self._demands, self._costs = demands, costs
        self._num_rows = len(demands)
        self.draft_s = 0.0
        most = max((len(demand.survival) for demand in demands), default=0)
        self.drafting = [0] * (most + 1)
        self.tokens_of = [1.0] * len(demands)
        self.tokens = float(len(demands))

    def longer_s(self, index: int) -> float:
        """Seconds of the round if a request had one more row."""
        return self.draft_s + self._level_s(self.rows[index]) + self._verify_s()

    def add(self, index: int) -> None:
        level = self.rows[index]
        self.draft_s += self._level_s(level)
        self.seconds = self.draft_s + self._verify_s()
        survival = self._demands[index].survival[level - 1]
        self.rows[index] += 1
        self._num_rows += 1
        self.drafting[level] += 1
        self.tokens_of[index] += survival
        self.tokens += survival

    def _level_s(self, level: int) -> float:
        """What a request adds to the drafting of a level."""
        drafting = self.drafting[level]
        before_s = self._costs.level_s(level, drafting) if drafting else 0.0
        return self._costs.level_s(level, drafting + 1) - before_s

    def _verify_s(self) -> float:
        """Seconds of a verification with one more row."""
        return self._costs.verify_s(len(self.rows), self._num_rows + 1)


@dataclass(frozen=True, slots=True)
class Worth(Control):
    """The rows with the most expected tokens per second."""

    weighs_drafts: ClassVar[bool] = True

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        return add_likeliest(DraftRound(demands, costs), demands, costs=costs, max_rows=max_rows)


@dataclass(frozen=True, slots=True)
class Slo(Control):
    """First the rows that requests need to keep their limits (AdaServe, EuroSys'26, arXiv 2501.12162).

    A request that is behind its limit on the time per token is due several tokens from one round. The one that is due
    most takes its likeliest rows first, until their expected number, with the bonus token, is what it is due. The room
    that is left is divided as `Worth` does. In the paper rows cost nothing up to a fixed budget, which is always used
    up. Where they cost time, a request takes only those that let its own tokens come faster: others would delay it,
    too.
    """

    weighs_drafts: ClassVar[bool] = True

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        begun = DraftRound(demands, costs)
        add_due(begun, demands, max_rows=max_rows)
        return add_likeliest(begun, demands, costs=costs, max_rows=max_rows)


def add_due(begun: DraftRound, demands: Sequence[Demand], *, max_rows: int) -> None:
    """Give requests the rows that they are due, those that are due most first, while there is room."""
    left = max_rows - len(demands)
    behind = [index for index, demand in enumerate(demands) if demand.tokens_due > 1]
    for index in sorted(behind, key=lambda index: -demands[index].tokens_due):
        demand = demands[index]
        for survival in demand.survival[begun.rows[index] - 1 :]:
            if left <= 0 or begun.tokens_of[index] >= demand.tokens_due:
                break
            if survival / begun.tokens_of[index] < len(behind) * (begun.longer_s(index) / begun.seconds - 1):
                break
            begun.add(index)
            left -= 1


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
