"""Gain of drafting over plain decoding with its interval, and what can be said of it."""

import math
from enum import StrEnum
from typing import Self

from pydantic import Field

from swiftspec.files.document import Facts

_NORMAL_90 = 1.645


def interval_90(value: float, spread: float) -> tuple[float, float]:
    """90 % interval of a value by its relative standard deviation."""
    factor = math.exp(_NORMAL_90 * spread)
    return value / factor, value * factor


class Verdict(StrEnum):
    """Whether drafting is faster, slower, or nobody can say before it is measured."""

    GAINS = "gains"
    LOSES = "loses"
    OPEN = "open"


class Gain(Facts):
    """A speed over that of plain decoding on the same devices under the same load, with its 90 % interval.

    policy: which drafts, where several do. acceptance_share: of the interval's variance, how much is of acceptance.

    Examples
    --------
    >>> Gain.within(1.2, spread=0.05).verdict
    <Verdict.GAINS: 'gains'>
    >>> Gain.within(0.97, spread=0.05).verdict
    <Verdict.OPEN: 'open'>
    """

    ratio: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    policy: str = ""
    acceptance_share: float = Field(default=0.0, ge=0, le=1)

    @classmethod
    def within(cls, ratio: float, *, spread: float, acceptance: float = 0.0, policy: str = "") -> Self:
        """With the interval of relative standard deviations: of times, and of tokens per round."""
        whole = math.hypot(spread, acceptance)
        low, high = interval_90(ratio, whole)
        share = (acceptance / whole) ** 2 if whole else 0.0
        return cls(ratio=ratio, low=low, high=high, policy=policy, acceptance_share=share)

    @property
    def verdict(self) -> Verdict:
        """Open where the interval holds 1."""
        if self.low <= 1 <= self.high:
            return Verdict.OPEN
        return Verdict.GAINS if self.low > 1 else Verdict.LOSES

    @property
    def closed_by(self) -> str:
        """What to measure where it is open, a clause."""
        if self.acceptance_share > 0.5:
            return "the draft's acceptance on your own text closes it (swiftspec trace, or rates as --acceptance)"
        return "measuring both on these devices closes it (swiftspec loadtest, with the draft and without)"
