"""Gain of drafting over plain decoding with its interval, and what can be said of it."""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import Field

from swiftspec.files.document import Facts

__all__ = ["Gain", "Verdict"]

_NORMAL_90 = 1.645


class Verdict(StrEnum):
    """Whether drafting is faster, slower, or nobody can say before it is measured."""

    GAINS = "gains"
    LOSES = "loses"
    OPEN = "open"


class Gain(Facts):
    """A speed over that of plain decoding on the same devices under the same load, with its 90 % interval.

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

    @classmethod
    def within(cls, ratio: float, *, spread: float) -> Gain:
        """With the interval of a relative standard deviation."""
        factor = math.exp(_NORMAL_90 * spread)
        return cls(ratio=ratio, low=ratio / factor, high=ratio * factor)

    @property
    def verdict(self) -> Verdict:
        """Open where the interval holds 1."""
        if self.low <= 1 <= self.high:
            return Verdict.OPEN
        return Verdict.GAINS if self.low > 1 else Verdict.LOSES
