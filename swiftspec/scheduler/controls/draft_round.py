"""A round while a control divides its rows: tokens expected, seconds needed, and what one more row would change."""

from collections.abc import Sequence

from swiftspec.scheduler.controls.control import Contender
from swiftspec.scheduler.costs import RoundCosts

__all__ = ["DraftRound"]


class DraftRound:
    """Rows that are given so far, at first one for each contender.

    Attributes
    ----------
    rows : list of int
        Of each contender's verification.
    seconds : float
        Of the round, drafting included.
    """

    def __init__(self, contenders: Sequence[Contender], costs: RoundCosts) -> None:
        self.rows = [1] * len(contenders)
        self.seconds = costs.verify_s(len(contenders), len(contenders))
        self._contenders, self._costs = contenders, costs
        self._num_rows = len(contenders)
        self._draft_s = 0.0
        most = max((len(contender.survival) for contender in contenders), default=0)
        self._drafting = [0] * (most + 1)  # contenders that draft a level, from 1
        self._tokens = [1.0] * len(contenders)
        self.tokens = float(len(contenders))

    def tokens_of(self, index: int) -> float:
        """Expected tokens of a contender, the bonus token included."""
        return self._tokens[index]

    def can_grow(self, index: int) -> bool:
        """Whether a contender has another row."""
        return self.rows[index] <= len(self._contenders[index].survival)

    @property
    def drafting(self) -> list[int]:
        """Number of contenders that draft each level, from 1."""
        return self._drafting

    @property
    def draft_s(self) -> float:
        """Seconds of the round's drafting."""
        return self._draft_s

    def longer_s(self, index: int) -> float:
        """Seconds of the round if a contender had one more row."""
        return self._draft_s + self._level_s(self.rows[index]) + self._verify_s()

    def add(self, index: int) -> None:
        """Give a contender one more row."""
        level = self.rows[index]
        self._draft_s += self._level_s(level)
        self.seconds = self._draft_s + self._verify_s()
        survival = self._contenders[index].survival[level - 1]
        self.rows[index] += 1
        self._num_rows += 1
        self._drafting[level] += 1
        self._tokens[index] += survival
        self.tokens += survival

    def _level_s(self, level: int) -> float:
        """What a contender adds to the drafting of a level."""
        drafting = self._drafting[level]
        before_s = self._costs.level_s(level, drafting) if drafting else 0.0
        return self._costs.level_s(level, drafting + 1) - before_s

    def _verify_s(self) -> float:
        """Seconds of a verification with one more row."""
        return self._costs.verify_s(len(self.rows), self._num_rows + 1)
