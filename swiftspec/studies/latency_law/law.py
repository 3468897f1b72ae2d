"""Latency under load as a law of two numbers, C1 and C2, with the queue that it follows from.

A step of B requests takes a + b B seconds, and a request needs n steps. With Poisson arrivals this is a queue whose
servers' total speed depends on the number of requests only, and which all share: its stationary distribution does not
depend on that of n. With a load of RPS n b, the number of requests B is negative binomial with r = 1 + a / b, and
the mean latency is n (a + b) / (1 - load), that is C1 = n (a + b) and C2 = n b. Prompts add to both.

Conventions: C1 is the latency of a request that is alone, its own share b of every step included, and C2 what each
further request adds to it. N clients of a closed loop therefore have latencies of C1 + (N - 1) C2.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from swiftspec.errors import FieldError
from swiftspec.studies.latency_law.coverage import ExpertCoverage


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLaw:
    """Mean end-to-end latency by rate: C1 / (1 - RPS C2).

    Parameters
    ----------
    c1_s : float
        Seconds of a request that is alone.
    c2_s : float
        Seconds that each further request adds, or 0: then load costs nothing.
    coverage : ExpertCoverage, optional
        Of a sparse target. Reading weights is then cheaper for few tokens: C1 grows with the share of the experts that
        a step reads, from that of a request alone.
    rows : int
        Rows of a request in a step of the target, for the coverage: 1 without speculation.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> law = LatencyLaw(c1_s=6.8223, c2_s=0.0123)  # 200 tokens of Qwen3-32B, in steps of 34.05 + 0.0615 B ms
    >>> round(law.saturation), round(law.latency_s(40.0), 2)
    (81, 13.43)
    """

    c1_s: float
    c2_s: float
    coverage: ExpertCoverage | None = None
    rows: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.c1_s < math.inf:
            raise ValueError(f"c1_s is {self.c1_s}; expected a positive number of seconds")
        if not 0 <= self.c2_s < math.inf:
            raise ValueError(f"c2_s is {self.c2_s}; expected 0 or a positive number of seconds")
        if self.rows < 1:
            raise ValueError(f"rows is {self.rows}; expected at least 1")

    @classmethod
    def of_steps(cls, *, num_steps: float, fixed_s: float, each_s: float) -> "LatencyLaw":
        """The law of requests that need `num_steps` steps of `fixed_s + each_s B` seconds."""
        return cls(c1_s=num_steps * (fixed_s + each_s), c2_s=num_steps * each_s)

    @property
    def saturation(self) -> float:
        """Requests per second at which the latency has no bound, if any number may run at once."""
        return 1 / self.c2_s if self.c2_s else math.inf

    def load(self, rate: float) -> float:
        """Share of the saturation."""
        return rate * self.c2_s

    def latency_s(self, rate: float) -> float:
        """Mean seconds at a rate of Poisson arrivals; infinite from the saturation on."""
        if self.load(rate) >= 1:
            return math.inf
        if self.coverage is None or rate == 0:
            return self.c1_s / (1 - self.load(rate))
        return self._num_others(rate) / rate

    def reading_factor(self, num_others: float) -> float:
        """Experts that a step reads with so many others in it, over those that a request alone reads."""
        if self.coverage is None:
            return 1.0
        return self.coverage.share(self.rows * (1 + num_others)) / self.coverage.share(self.rows)

    def shared_s(self, num_others: float) -> float:
        """Seconds of a request beside a constant number of others: those of a closed loop."""
        return self.c1_s * self.reading_factor(num_others) + self.c2_s * num_others

    def _num_others(self, rate: float) -> float:
        """The number that a request finds, by Little's law that in the system: rate times the latency beside them."""
        assert self.coverage is not None
        most = rate * self.c1_s / self.coverage.share(self.rows) / (1 - self.load(rate))
        return float(brentq(lambda others: rate * self.shared_s(others) - others, 0.0, most * (1 + 1e-9) + 1e-12))

    def batch_probability(self, number: int, rate: float) -> float:
        """Probability that so many requests are in the system; a negative binomial law.

        ValueError for a sparse model, or a rate that is none below the saturation.
        """
        if self.coverage is not None:
            raise ValueError(f"coverage is {self.coverage}; the distribution is known of dense models only")
        load = self.load(rate)
        if not 0 <= load < 1:
            raise FieldError("rate", rate, f"expected less than the saturation, {self.saturation:g} requests/s")
        if not self.c2_s:
            mean = rate * self.c1_s
            return math.exp(number * math.log(mean) - mean - math.lgamma(number + 1)) if mean else float(not number)
        shape = self.c1_s / self.c2_s
        if not load:
            return float(not number)
        ways = math.lgamma(number + shape) - math.lgamma(shape) - math.lgamma(number + 1)
        return math.exp(ways + shape * math.log1p(-load) + number * math.log(load))

    def limited_saturation(self, max_running: int) -> float:
        """Requests per second of a closed loop of as many clients as may run at once."""
        return max_running / self.shared_s(max_running - 1)

    def limited_latency_s(self, rate: float, max_running: int) -> float:
        """Mean seconds at a rate if at most `max_running` run at once and others wait, in the order of their arrival.

        A birth-death process with death rates j / (C1 + (j - 1) C2), constant from `max_running` on: exact if the
        outputs' lengths are geometric, and near it otherwise. Infinite from `limited_saturation` on.
        """
        if not rate:
            return self.c1_s
        least = rate / self.limited_saturation(max_running)
        if least >= 1:
            return math.inf
        numbers = np.arange(max_running + 1)
        shared_s = np.array([self.shared_s(number) for number in range(max_running)])
        weights = np.concatenate([[0.0], np.cumsum(np.log(rate * shared_s / numbers[1:]))])
        weights = np.exp(weights - weights.max())  # in proportion to the probabilities
        tail = weights[-1] * least / (1 - least)  # of more than max_running, a geometric series
        mean = (float(weights @ numbers) + tail * (max_running + 1 / (1 - least))) / float(weights.sum() + tail)
        return float(mean / rate)
