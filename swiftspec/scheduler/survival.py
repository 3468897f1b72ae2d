"""Survival of draft rows: the probability that a verification's row is accepted, learnt from past verifications.

Rows come best first, so a row's number tells much about its chances. Estimates are of the rows' numbers alone, not of
what was drafted now: a grant that follows them does not depend on the tokens it is about, which keeps sampling exact.
"""

from collections.abc import Collection
from itertools import accumulate

_MEMORY = 0.995  # of all requests together: about the last 200 verifications
_OWN_MEMORY = 0.98  # of one request: about its last 50
_TRUST = 40.0  # verifications of all requests that weigh as much as those of the request itself


class _Rates:
    """Exponentially weighted numbers of verified and of accepted rows, by row number from 1."""

    __slots__ = ("hits", "memory", "weights")

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self.weights: list[float] = []
        self.hits: list[float] = []

    def note(self, num_rows: int, accepted: Collection[int]) -> None:
        memory, weights, hits = self.memory, self.weights, self.hits
        if (missing := num_rows - 1 - len(weights)) > 0:
            weights += [0.0] * missing
            hits += [0.0] * missing
        for index in range(num_rows - 1):
            weights[index] = memory * weights[index] + 1.0
            hits[index] *= memory
        for row in accepted:
            if row:
                hits[row - 1] += 1.0


class Survival:
    """Estimates for the requests of one device group."""

    def __init__(self) -> None:
        self._pooled = _Rates(_MEMORY)
        self._own: dict[int, _Rates] = {}

    @property
    def most_rows(self) -> int:
        """Rows of the largest verification so far; 1 before the first one with a draft."""
        return len(self._pooled.weights) + 1

    def note(self, request: int, num_rows: int, accepted: Collection[int]) -> None:
        """Add a verification of `num_rows` rows. accepted: numbers of its rows that were; the root's is 0."""
        self._pooled.note(num_rows, accepted)
        self._own.setdefault(request, _Rates(_OWN_MEMORY)).note(num_rows, accepted)

    def forget(self, request: int) -> None:
        """Forget a request that has ended."""
        self._own.pop(request, None)

    def of(self, request: int, num_rows: int) -> tuple[float, ...]:
        """Probability of rows 1 to `num_rows` - 1 of a request, as far as any were verified; it never rises."""
        pooled = self._pooled
        rates = [hit / weight for hit, weight in zip(pooled.hits[: num_rows - 1], pooled.weights, strict=False)]
        if own := self._own.get(request):
            for index, (hit, weight) in enumerate(zip(own.hits[: len(rates)], own.weights, strict=False)):
                rates[index] = (hit + _TRUST * rates[index]) / (weight + _TRUST)
        return tuple(accumulate(rates, min))
