"""Speculative decoding in the latency model: costs of a request's parts, and comparison with plain decoding.

    C1 = c1p + (g / E) (c1v + k c1d)        C2 = c2p + (g / E) (c2v + k c2d)        E = (1 - a^(k + 1)) / (1 - a)

for prefill, verification and draft forward (indices p, v, d), g output tokens, k draft tokens per round and E tokens
per round. Source: Kong et al., arXiv 2605.15051.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scipy.optimize import brentq

from swiftspec.errors import FieldError
from swiftspec.studies.latency_law.law import LatencyLaw

_SAME = 1e-12  # of two slopes
_SEARCHED = 400  # loads at which a crossing is looked for, where there is no formula
_NEAREST = 1 - 1e-6  # to a saturation


def tokens_per_round(acceptance: float | Sequence[float], num_draft_tokens: int | None = None) -> float:
    """Tokens of a round with its bonus token.

    Parameters
    ----------
    acceptance : float or sequence of float
        Either the probability that a draft token is accepted if all before it were, the same for each, with the number
        of draft tokens; or the probabilities that the first, the second .. draft token of a round is accepted, as vLLM
        logs them.
    num_draft_tokens : int, optional
        Of a round; all of a sequence if not given.

    Raises
    ------
    ValueError
        If a probability is none, or there are fewer of them than draft tokens.

    Examples
    --------
    >>> round(tokens_per_round(0.8, 4), 4), round(tokens_per_round([0.71, 0.489, 0.355]), 3)
    (3.3616, 2.554)
    """
    rates = [acceptance] if isinstance(acceptance, int | float) else list(acceptance)
    if bad := [rate for rate in rates if not 0 <= rate <= 1]:
        raise FieldError("acceptance", bad[0], "expected a probability")
    if isinstance(acceptance, int | float):
        if num_draft_tokens is None:
            raise ValueError("num_draft_tokens is missing; one acceptance rate does not say how many there are")
        return float(sum(acceptance**length for length in range(num_draft_tokens + 1)))
    length = len(rates) if num_draft_tokens is None else num_draft_tokens
    if length > len(rates):
        raise ValueError(f"acceptance has {len(rates)} rates; expected {length}, one for each draft token")
    return 1 + sum(rates[:length])


class Cost(NamedTuple):
    """Seconds of something a request needs: alone, and added by each further request."""

    c1_s: float
    c2_s: float

    def times(self, number: float) -> "Cost":
        """Of so many."""
        return Cost(number * self.c1_s, number * self.c2_s)

    def plus(self, other: "Cost") -> "Cost":
        """Of both."""
        return Cost(self.c1_s + other.c1_s, self.c2_s + other.c2_s)


_NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCosts:
    """Costs of the parts of a request: its prompt, a verification, a draft forward, and the rest of a round.

    Parameters
    ----------
    prefill, verify, draft : Cost
        `draft` of one forward.
    rest : Cost
        Of a round: host, messages, waiting. Published costs have none.
    """

    prefill: Cost
    verify: Cost
    draft: Cost = _NOTHING
    rest: Cost = _NOTHING

    def total(self, *, output_tokens: float, tokens_per_round: float = 1.0, num_draft_tokens: float = 0.0) -> Cost:
        """C1 and C2 of a request."""
        of_round = self.verify.plus(self.draft.times(num_draft_tokens)).plus(self.rest)
        return self.prefill.plus(of_round.times(output_tokens / tokens_per_round))

    def law(self, *, output_tokens: float, tokens_per_round: float = 1.0, num_draft_tokens: float = 0.0) -> LatencyLaw:
        """The law of such requests."""
        total = self.total(
            output_tokens=output_tokens, tokens_per_round=tokens_per_round, num_draft_tokens=num_draft_tokens
        )
        return LatencyLaw(c1_s=total.c1_s, c2_s=total.c2_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Speculative against plain decoding of the same requests."""

    plain: LatencyLaw
    speculative: LatencyLaw

    @property
    def c1_ratio(self) -> float:
        """C1R: latency of a request alone, speculative over plain."""
        return self.speculative.c1_s / self.plain.c1_s

    @property
    def c2_ratio(self) -> float:
        """C2R: what a further request adds, speculative over plain; infinite if it adds nothing to plain decoding."""
        if not self.plain.c2_s:
            return math.inf if self.speculative.c2_s else 1.0
        return self.speculative.c2_s / self.plain.c2_s

    def speed_up(self, rate: float) -> float:
        """Plain latency over speculative latency at a rate that both can serve; 0 from the latter's saturation on.

        For dense models it is (1 / C1R) (1 + (1 - C2R) x / (1 - x)) with x = RPS C2 of plain decoding: it grows with
        the load exactly if C2R is below 1.
        """
        speculative_s = self.speculative.latency_s(rate)
        return self.plain.latency_s(rate) / speculative_s if math.isfinite(speculative_s) else 0.0

    @property
    def break_even_load(self) -> float | None:
        """Load, as a share of the plain server's saturation, at which both have the same latency; None without any.

        (1 - C1R) / (C2R - C1R) for dense models. Speculation pays below it if C1R is below 1, and above it otherwise.
        """
        if self.plain.coverage is not None or self.speculative.coverage is not None:
            return self._crossing()
        slope = self.c2_ratio - self.c1_ratio
        if abs(slope) < _SAME or not math.isfinite(slope):
            return None
        load = (1 - self.c1_ratio) / slope
        return load if 0 <= load < 1 else None

    def _crossing(self) -> float | None:
        """The lowest load at which the speed-up passes 1."""
        most = _NEAREST * min(self.plain.saturation, self.speculative.saturation)
        if not math.isfinite(most):
            return None
        rates = [most * step / _SEARCHED for step in range(_SEARCHED + 1)]
        gains = [self.speed_up(rate) - 1 for rate in rates]
        for number in range(_SEARCHED):
            if gains[number] * gains[number + 1] <= 0 < abs(gains[number]):
                rate = brentq(lambda at: self.speed_up(at) - 1, rates[number], rates[number + 1])
                return self.plain.load(float(rate))
        return None

    @property
    def break_even_rate(self) -> float | None:
        """`break_even_load` in requests per second."""
        load = self.break_even_load
        return None if load is None else load * self.plain.saturation


def best_length(laws: Mapping[int, LatencyLaw], rate: float) -> int:
    """The number of draft tokens with the lowest latency at a rate, 0 for plain decoding; the smallest one of several.

    ValueError if none can serve the rate.
    """
    latencies = dict(_served(laws, rate))
    if not latencies:
        raise FieldError("rate", f"{rate:g}", "expected less than the highest saturation")
    return min(latencies, key=lambda length: (latencies[length], length))


def _served(laws: Mapping[int, LatencyLaw], rate: float) -> Iterator[tuple[int, float]]:
    for length, law in laws.items():
        if math.isfinite(seconds := law.latency_s(rate)):
            yield length, seconds
