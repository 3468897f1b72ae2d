"""Latency: a distribution of seconds with its parts and its provenance."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from pydantic import Field

from swiftspec.files.document import Facts

NUM_QUANTILES = 20


class Provenance(StrEnum):
    """Provenance of a latency, best first, or of acceptance, which users may give.

    A sum is as weak as the weakest of its parts.
    """

    MEASURED = "measured"
    GIVEN = "given"
    PUBLISHED = "published"
    INTERPOLATED = "interpolated"
    COMPOSED = "composed"
    ROOFLINE = "roofline"
    ASSUMED = "assumed"


_STRENGTH = {provenance: strength for strength, provenance in enumerate(Provenance)}


def weakest(provenances: Iterable[Provenance]) -> Provenance:
    """The provenance of a sum."""
    return max(provenances, key=_STRENGTH.__getitem__)


class Part(Facts):
    """Operations of one name in a composed step, over all layers."""

    name: str
    seconds: float = Field(ge=0)
    provenance: Provenance


class Latency(NamedTuple):
    """A distribution in seconds: `quantiles_s[i]` is the (i + 0.5) / NUM_QUANTILES quantile. Their mean is the mean.

    parts: the operations it is composed of, if any; they add up to the mean.
    """

    quantiles_s: tuple[float, ...]
    provenance: Provenance
    parts: tuple[Part, ...] = ()

    @property
    def shares(self) -> dict[Provenance, float]:
        """Shares of the mean by provenance; they sum to 1."""
        total_s = sum(part.seconds for part in self.parts)
        if not total_s:
            return {self.provenance: 1.0}
        shares: dict[Provenance, float] = {}
        for part in self.parts:
            shares[part.provenance] = shares.get(part.provenance, 0.0) + part.seconds / total_s
        return shares

    @property
    def mean_s(self) -> float:
        return sum(self.quantiles_s) / len(self.quantiles_s)

    @property
    def median_s(self) -> float:
        middle = len(self.quantiles_s) // 2
        return (self.quantiles_s[middle - 1] + self.quantiles_s[middle]) / 2

    @classmethod
    def of_samples(cls, samples_s: Iterable[float], provenance: Provenance) -> "Latency":
        """The distribution of measured seconds."""
        levels = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
        return cls(tuple(np.quantile(np.fromiter(samples_s, float), levels).tolist()), provenance)
