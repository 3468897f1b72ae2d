"""Acceptance as a server counted it, at the draft length in use and at others, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.advice import ObservedLoad
from swiftspec.validation.served import DraftCounts

__all__ = ["CountedAcceptance"]

_EXTRAPOLATED: Final = 0.1  # standard deviation of the rate beyond the counted positions: an assumption
_HALF: Final = 0.5  # of Jeffreys' prior of a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedAcceptance:
    """Acceptance by position.

    rates: of each draft token, if those before it were accepted. share: of the rounds that have drafts. drafts:
    independent ones that would tell as much.
    """

    rates: tuple[float, ...]
    share: float
    drafts: float

    @classmethod
    def of(cls, observed: ObservedLoad) -> CountedAcceptance:
        """That of a load; rates beyond the counted positions are as the last one."""
        rates = tuple(min(1.0, now / then) if then else 0.0 for then, now in pairwise((1.0, *observed.survival)))
        return cls(rates=rates[: observed.draft_tokens], share=observed.draft_share, drafts=observed.effective_drafts)

    def survival(self, length: int) -> list[float]:
        """Shares of the drafts of which at least 1, 2, .. tokens are accepted."""
        return list(accumulate(self._rates(length), mul))

    def tokens(self, length: int) -> float:
        """Mean tokens of a round, the bonus token included."""
        return 1 + self.share * sum(self.survival(length))

    def counts(self, length: int) -> DraftCounts:
        """The same as counts of drafts of this length."""
        share = self.share if length else 0.0
        by_position = [share * each for each in self.survival(length)]
        return DraftCounts(steps=1.0, drafts=share, drafted=share * length, by_position=by_position)

    def drawn_tokens(self, lengths: tuple[int, ...], *, draws: int, seed: int) -> dict[int, npt.NDArray[np.float64]]:
        """`tokens` of the lengths, redrawn as often as given within what the counts leave open."""
        rng = np.random.default_rng(seed)
        longest, counted = max(lengths), len(self.rates)
        at_risk, columns = self.drafts, []
        for rate in self.rates[:longest]:
            columns.append(rng.beta(_HALF + at_risk * rate, _HALF + at_risk * (1 - rate), size=draws))
            at_risk *= rate
        if longest > counted and columns:
            beyond = columns[-1] + _EXTRAPOLATED * rng.standard_normal(draws)
            columns += [beyond.clip(0.0, 1.0)] * (longest - counted)
        survival = np.cumprod(np.array(columns).reshape(len(columns), draws), axis=0)
        return {length: 1 + self.share * survival[:length].sum(axis=0) for length in lengths}

    def _rates(self, length: int) -> tuple[float, ...]:
        last = self.rates[-1:] * max(0, length - len(self.rates))
        return (*self.rates, *last)[:length]
