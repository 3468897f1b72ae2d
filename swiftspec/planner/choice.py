"""Which outcome wins, and how sure that is: bootstrap over prompts, ties to the simpler option. No simulation here."""

from collections.abc import Sequence

import numpy as np

from swiftspec.planner.evaluation import Outcome

__all__ = ["Resampling"]

_NUM_RESAMPLES = 1000
_LEVELS = (0.025, 0.975)
# A difference inside the noise may still be one: never give up more than this for simplicity.
_MOST_GIVEN_UP = 0.02


class Resampling:
    """The same resamples of prompts for every outcome, so that outcomes are compared pairwise.

    Prompts are the sampling unit, as a plan is made for prompts other than those traced. A single prompt leaves only
    the seeds to resample.
    """

    def __init__(self, *, num_prompts: int, num_seeds: int, seed: int) -> None:
        self._by_prompt = num_prompts > 1
        num_units = num_prompts if self._by_prompt else num_seeds
        self._units = np.random.default_rng(seed).integers(0, num_units, (_NUM_RESAMPLES, num_units))

    def interval(self, outcome: Outcome) -> tuple[float, float]:
        """95 % confidence interval of tokens/s; it always holds the estimate itself."""
        low, high = np.quantile(self._speeds(outcome), _LEVELS)
        return min(float(low), outcome.tokens_per_s), max(float(high), outcome.tokens_per_s)

    def winner(self, outcomes: Sequence[Outcome]) -> tuple[Outcome, list[Outcome]]:
        """The simplest of the outcomes that are as fast as the fastest; and the others of these, fastest first."""
        fastest = max(outcomes, key=lambda outcome: outcome.tokens_per_s)
        tied = [outcome for outcome in outcomes if self._ties(outcome, fastest)]
        chosen = min(tied, key=lambda outcome: outcome.option.simplicity)
        others = [outcome for outcome in tied if outcome is not chosen]
        return chosen, sorted(others, key=lambda outcome: -outcome.tokens_per_s)

    def _ties(self, outcome: Outcome, fastest: Outcome) -> bool:
        """Whether 0 lies in the 95 % interval of what `fastest` gains, and the gain is small anyway."""
        gains = self._speeds(fastest) / self._speeds(outcome) - 1
        small = fastest.tokens_per_s / outcome.tokens_per_s - 1 <= _MOST_GIVEN_UP
        return small and float(np.quantile(gains, _LEVELS[0])) <= 0

    def _speeds(self, outcome: Outcome) -> np.ndarray:
        """Tokens/s in every resample, (resamples,)."""
        tokens = np.broadcast_to(outcome.tokens, outcome.request_s.shape)
        axis = 0 if self._by_prompt else 1
        speeds: np.ndarray = tokens.sum(axis)[self._units].sum(1) / outcome.request_s.sum(axis)[self._units].sum(1)
        return speeds
