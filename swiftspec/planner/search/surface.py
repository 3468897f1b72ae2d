"""Main effects of shapes and splits, estimated from short simulations of some. No simulation here.

A few dozen rounds rank two shapes that are 5 % apart by luck as often as not. But every value of every field was tried
with many others, so its effect over all of these is known better than any single option: the log ratio of simulation
to closed form is fitted by a sum over the values of an option's fields and its split (ridge regression).
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.plan import Goal
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.goals import score_of_speed
from swiftspec.planner.search.option import Key, Option
from swiftspec.planner.search.simulations import RankedOption
from swiftspec.policies import Policy
from swiftspec.policies.base import shape_of

__all__ = ["Surface"]

_RIDGE = 1.0  # as if every value had been seen once more, without effect


class Surface:
    """Expected speed, TPOT, TTFT and score of one policy's options.

    Parameters
    ----------
    outcomes : sequence of Outcome
    weights : sequence of float
        Length of each simulation relative to the shortest.
    goal : Goal
    estimates : mapping
        Closed-form tokens/s of every option.
    """

    def __init__(
        self, outcomes: Sequence[Outcome], weights: Sequence[float], goal: Goal, estimates: Mapping[Key, float]
    ) -> None:
        self._goal = goal
        self._estimates = estimates
        levels = sorted({level for outcome in outcomes for level in _levels(outcome.option)}, key=repr)
        self._columns = {level: column for column, level in enumerate(levels)}
        figures = np.log([[o.tokens_per_s, o.mean_tpot_s, o.mean_ttft_s, o.score(goal)] for o in outcomes])
        options = [outcome.option for outcome in outcomes]
        figures -= self._priors(options)
        design = self._design(options)
        weighted = design * np.array(weights)[:, None]
        self._mean = np.average(figures, axis=0, weights=weights)
        gram = weighted.T @ design + _RIDGE * np.eye(len(levels))
        self._effects = np.linalg.solve(gram, weighted.T @ (figures - self._mean))

    def expected(self, options: Sequence[Option]) -> list[RankedOption]:
        """Expected figures of options, tried or not; a value that was never tried has no effect."""
        figures = np.exp(self._priors(options) + self._mean + self._design(options) @ self._effects).tolist()
        return [
            RankedOption(option=option, tokens_per_s=tokens_per_s, tpot_s=tpot_s, ttft_s=ttft_s, score=score)
            for option, (tokens_per_s, tpot_s, ttft_s, score) in zip(options, figures, strict=True)
        ]

    def _priors(self, options: Sequence[Option]) -> npt.NDArray[np.float64]:
        """Logarithms of tokens/s, TPOT, TTFT and score in closed form, (options, 4); TTFT has no closed form."""
        speeds = [self._estimates[option.key] for option in options]
        scores = [
            score_of_speed(self._goal, speed, option.num_devices) for option, speed in zip(options, speeds, strict=True)
        ]
        priors: npt.NDArray[np.float64] = np.log(
            np.array([speeds, np.reciprocal(speeds), np.ones(len(speeds)), scores]).T
        )
        return priors

    def _design(self, options: Sequence[Option]) -> npt.NDArray[np.float64]:
        """1 where an option has a level, (options, levels)."""
        design = np.zeros((len(options), len(self._columns)))
        for row, option in zip(design, options, strict=True):
            for level in _levels(option):
                column = self._columns.get(level)
                if column is not None:
                    row[column] = 1.0
        return design


def _levels(option: Option) -> tuple[Hashable, ...]:
    """The values of an option's fields, and its split."""
    return (("split", option.split_key), *_fields(option.policy))


@cache
def _fields(policy: Policy) -> tuple[Hashable, ...]:
    return tuple(shape_of(policy).items())
