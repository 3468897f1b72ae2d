"""Latencies that are sums of a few costs: coefficients fitted by relative least squares, never negative."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from swiftspec.timing.sharing import never_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A published or measured latency, and the amount of each cost in it."""

    name: str
    amounts: Mapping[str, float]
    seconds: float
    fixed_s: float = 0.0  # known from elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    """Seconds per unit of each cost."""

    coefficients: Mapping[str, float]

    @classmethod
    def to(cls, observations: Sequence[Observation]) -> "LinearFit":
        """Least squares of the errors relative to the observed latencies."""
        names = sorted({name for observation in observations for name in observation.amounts})
        seconds = np.array([observation.seconds for observation in observations])
        fixed_s = np.array([observation.fixed_s for observation in observations])
        amounts = np.array([[observation.amounts.get(name, 0.0) for name in names] for observation in observations])
        scale = np.abs(amounts).max(axis=0)
        scale[scale == 0] = 1.0
        found = never_negative(amounts / scale / seconds[:, None], (seconds - fixed_s) / seconds)
        return cls(coefficients=dict(zip(names, (found / scale).tolist(), strict=True)))

    def seconds(self, amounts: Mapping[str, float], *, fixed_s: float = 0.0) -> float:
        return fixed_s + sum(self.coefficients[name] * amount for name, amount in amounts.items())

    def error(self, observation: Observation) -> float:
        """Predicted over observed, less 1."""
        return self.seconds(observation.amounts, fixed_s=observation.fixed_s) / observation.seconds - 1
