"""A round while a control divides its rows: tokens expected, seconds needed, and what one more row would change."""

from collections.abc import Sequence

from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.costs import RoundCosts


class DraftRound:
    """Rows that are given so far, at first one for each request.

    rows: of each request's verification.
    seconds: of the round, drafting included.
    draft_s: of its drafting.
    drafting: requests that draft each level, from 1.
    tokens: expected of all requests, bonus tokens included.
    """

    def __init__(self, demands: Sequence[Demand], costs: RoundCosts) -> None:
        self.rows = [1] * len(demands)
        self.seconds = costs.verify_s(len(demands), len(demands))
        self._demands, self._costs = demands, costs
        self._num_rows = len(demands)
        self.draft_s = 0.0
        most = max((len(demand.survival) for demand in demands), default=0)
        self.drafting = [0] * (most + 1)
        self._tokens = [1.0] * len(demands)
        self.tokens = float(len(demands))

    def tokens_of(self, index: int) -> float:
        """Expected tokens of a request, the bonus token included."""
        return self._tokens[index]

    def can_grow(self, index: int) -> bool:
        """Whether a request has another row."""
        return self.rows[index] <= len(self._demands[index].survival)

    def longer_s(self, index: int) -> float:
        """Seconds of the round if a request had one more row."""
        return self.draft_s + self._level_s(self.rows[index]) + self._verify_s()

    def add(self, index: int) -> None:
        """Give a request one more row."""
        level = self.rows[index]
        self.draft_s += self._level_s(level)
        self.seconds = self.draft_s + self._verify_s()
        survival = self._demands[index].survival[level - 1]
        self.rows[index] += 1
        self._num_rows += 1
        self.drafting[level] += 1
        self._tokens[index] += survival
        self.tokens += survival

    def _level_s(self, level: int) -> float:
        """What a request adds to the drafting of a level."""
        drafting = self.drafting[level]
        before_s = self._costs.level_s(level, drafting) if drafting else 0.0
        return self._costs.level_s(level, drafting + 1) - before_s

    def _verify_s(self) -> float:
        """Seconds of a verification with one more row."""
        return self._costs.verify_s(len(self.rows), self._num_rows + 1)
