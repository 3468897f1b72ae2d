"""How good an outcome is for what was asked: one number, the higher the better, whatever the objective."""

import numpy as np
import numpy.typing as npt

from swiftspec.plan import Goal, Objective

__all__ = ["PER_DEVICE", "merit", "merit_of_speed"]

PER_DEVICE = (Objective.TOKENS_PER_GPU, Objective.COST)  # objectives for which fewer devices may be better

_Array = npt.NDArray[np.float64]
_SECONDS_PER_HOUR = 3600


def merit(
    goal: Goal,
    *,
    tokens: _Array,
    request_s: _Array,
    tpot_s: _Array,
    num_devices: int,
    axes: tuple[int, ...] | None = None,
) -> _Array:
    """Merit of requests, over some axes of arrays of one shape, or over all of them.

    Parameters
    ----------
    tokens : array
        Output tokens of each request.
    request_s : array
        Seconds from request to last token.
    tpot_s : array
        Seconds per output token behind the first.
    num_devices : int
        In use.
    """
    if goal.objective is Objective.TPOT:
        return np.asarray(1 / tpot_s.mean(axis=axes))
    if goal.objective is Objective.TPOT_P95:
        return np.asarray(1 / np.percentile(tpot_s, 95, axis=axes))
    return np.asarray(merit_of_speed(goal, tokens.sum(axis=axes) / request_s.sum(axis=axes), num_devices))


def merit_of_speed(goal: Goal, tokens_per_s: float, num_devices: int) -> float:
    """Merit where nothing but the speed is known; TPOT is then its inverse."""
    if goal.objective is Objective.TOKENS_PER_GPU:
        return tokens_per_s / num_devices
    if goal.objective is Objective.COST:
        assert goal.price_per_hour is not None, "a goal checks itself"
        return tokens_per_s * _SECONDS_PER_HOUR / (goal.price_per_hour * num_devices)
    return tokens_per_s
