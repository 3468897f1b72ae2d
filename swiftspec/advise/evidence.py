"""Certainty of a gain: its interval, of what the counts and the model leave open, and how many requests would do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.advise.model import LoadMeans, ServerModel, Variant
from swiftspec.advise.observed import effective
from swiftspec.artifacts.gain import Gain

ENOUGH_REQUESTS: Final = 50  # fewer say nothing
LEAST_GAIN: Final = 1.02  # what the lower end of a gain has to be above
_DRAWS: Final = 4000
_SEED: Final = 0
_MANY: Final = 10**9
_LEVELS: Final = (0.05, 0.95)
_LEAST_FACTOR: Final = 0.1  # of a step's seconds
_GROWTH: Final = 1.25  # of the numbers of requests that are tried
_MOST: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence of a number of requests about changes of a server.

    now: as predicted for the server as it is. requests: those counted, or more.

    A gain is off by what is not known of the acceptance; of the step times, as far as those of both servers differ;
    and of the load, whose means are those of so many requests: of that, by 1 / sqrt(requests) of the gain.
    """

    model: ServerModel
    now: LoadMeans
    lengths: tuple[int, ...]
    requests: int

    def gain(self, variant: Variant, then: LoadMeans) -> Gain:
        """Gain of a variant with its 90 % interval.

        The counted TPOT stays as it is: if more tokens were accepted, then steps took longer.
        """
        length, tokens = self.model.now.length, self._tokens
        slower = tokens[length] / self.model.acceptance.tokens(length)
        fewer = self.model.acceptance.tokens(variant.length) / tokens[variant.length]
        decode_s = (then.e2e_s - then.ttft_s) * self._step_errors(variant, then)
        e2e_s = slower * (then.ttft_s + decode_s * fewer)
        ratios = (slower * self.now.ttft_s + self.now.e2e_s - self.now.ttft_s) / e2e_s
        ratios = ratios * (1 + np.abs(ratios - 1) * self._normal[1] / self.requests**0.5)
        ratio = self.now.e2e_s / then.e2e_s
        low, high = np.quantile(ratios, _LEVELS).tolist()
        return Gain(ratio=ratio, low=min(max(low, 1e-3), ratio), high=max(high, ratio))

    def needed_requests(self, variant: Variant, then: LoadMeans) -> int | None:
        """Requests with which the gain would be sure, if it is as predicted; None if no number would do."""
        if replace(self, requests=_MANY).gain(variant, then).low <= LEAST_GAIN:
            return None
        needed = float(max(ENOUGH_REQUESTS, self.requests))
        while needed < _MOST and replace(self, requests=round(needed)).gain(variant, then).low <= LEAST_GAIN:
            needed *= _GROWTH
        return round(needed)

    def _step_errors(self, variant: Variant, then: LoadMeans) -> npt.NDArray[np.float64]:
        """Factors of the seconds of a step: the part in which both servers' differ may be wrong."""
        accepted = self.model.acceptance
        now_s = self.now.tpot_s * accepted.tokens(self.model.now.length)
        then_s = then.tpot_s * accepted.tokens(variant.length)
        spread = (then_s - now_s) / then_s * self.model.step_error
        factors: npt.NDArray[np.float64] = (1 + spread * self._normal[0]).clip(_LEAST_FACTOR)
        return factors

    @cached_property
    def _normal(self) -> npt.NDArray[np.float64]:
        return np.random.default_rng(_SEED).standard_normal((2, _DRAWS))

    @cached_property
    def _tokens(self) -> dict[int, npt.NDArray[np.float64]]:
        observed, accepted = self.model.observed, self.model.acceptance
        drafts = effective(observed.drafts * self.requests / observed.requests, self.requests)
        return replace(accepted, drafts=drafts).drawn_tokens(self.lengths, draws=_DRAWS, seed=_SEED)
