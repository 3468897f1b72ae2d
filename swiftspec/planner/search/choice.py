"""Choice among outcomes, and its certainty: bootstrap over prompts, ties to the simpler option. No simulation."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.plan import Goal
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.goals import score
from swiftspec.planner.search.known_errors import NO_ERRORS, KnownErrors
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role

__all__ = ["MOST_GIVEN_UP", "Resampling"]

_NUM_RESAMPLES = 1000
_LEVELS = (0.025, 0.975)
# A difference within the noise may still be real: never give up more than this for simplicity.
MOST_GIVEN_UP = 0.02
_ANY_GOAL = Goal()


class Resampling:
    """The same resamples of prompts for every outcome, so that outcomes are compared pairwise.

    Prompts are the sampling unit, because a plan is made for prompts other than the traced ones. With a single prompt
    only its runs are resampled.

    Parameters
    ----------
    num_prompts, num_runs : int
        Of each outcome.
    errors : KnownErrors
        Errors of forwards and acceptance, which all prompts share.
    """

    def __init__(
        self,
        *,
        num_prompts: int,
        num_runs: int,
        seed: int,
        goal: Goal = _ANY_GOAL,
        errors: KnownErrors = NO_ERRORS,
    ) -> None:
        self._by_prompt = num_prompts > 1
        self._goal = goal
        self._errors = errors
        num_units = num_prompts if self._by_prompt else num_runs
        rng = np.random.default_rng(seed)
        self._units = rng.integers(0, num_units, (_NUM_RESAMPLES, num_units))
        self._deviations = rng.standard_normal((_NUM_RESAMPLES, len(Role) + 1))  # of forwards, and of acceptance

    def interval(self, outcome: Outcome) -> tuple[float, float]:
        """95 % interval of tokens/s over prompts, forwards and acceptance; it always contains the estimate itself.

        Speed is taken as proportional to the tokens per round, the quantity whose error is known.
        """
        drafts = outcome.option.policy.layout is not Layout.TARGET_ONLY
        spread = [*-outcome.elasticities * self._errors.of_forwards, self._errors.acceptance or 0.0 if drafts else 0.0]
        scores = self._scores(outcome, _ANY_GOAL) * np.exp(self._deviations @ np.array(spread))
        low, high = np.quantile(scores, _LEVELS)
        return min(float(low), outcome.tokens_per_s), max(float(high), outcome.tokens_per_s)

    def winner(self, outcomes: Sequence[Outcome]) -> tuple[Outcome, list[Outcome]]:
        """The simplest of the outcomes that are as good as the best, and the others of these, best first."""
        best = max(outcomes, key=lambda outcome: outcome.score(self._goal))
        tied = [outcome for outcome in outcomes if self._ties(outcome, best)]
        chosen = min(tied, key=lambda outcome: outcome.option.simplicity)
        others = [outcome for outcome in tied if outcome is not chosen]
        return chosen, sorted(others, key=lambda outcome: -outcome.score(self._goal))

    def _ties(self, outcome: Outcome, best: Outcome) -> bool:
        """Whether the 95 % interval of `best`'s gain contains 0, and the gain is small anyway."""
        gains = self._scores(best, self._goal) / self._scores(outcome, self._goal) - 1
        small = best.score(self._goal) / outcome.score(self._goal) - 1 <= MOST_GIVEN_UP
        return small and float(np.quantile(gains, _LEVELS[0])) <= 0

    def _scores(self, outcome: Outcome, goal: Goal) -> npt.NDArray[np.float64]:
        """Score of every resample, (resamples,)."""
        tokens = np.broadcast_to(outcome.tokens, outcome.request_s.shape)
        columns = [self._resampled(column) for column in (tokens, outcome.request_s, outcome.tpot_s)]
        return score(
            goal,
            tokens=columns[0],
            request_s=columns[1],
            tpot_s=columns[2],
            num_devices=outcome.option.num_devices,
            axes=(0, 2),
        )

    def _resampled(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(runs, prompts) -> (runs or prompts, resamples, units)."""
        by_unit = values if self._by_prompt else values.T
        return by_unit[:, self._units]
