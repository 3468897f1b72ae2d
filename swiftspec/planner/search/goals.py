"""Score of an outcome for a goal: one number, the higher the better, for any objective; and the goal's limits."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.plan import Goal, Objective, Plan

PER_DEVICE = (Objective.TOKENS_PER_GPU, Objective.COST)  # objectives for which fewer devices may be better

_Array = npt.NDArray[np.float64]
_SECONDS_PER_HOUR = 3600
_LEAST_S = 1e-12


def score(
    goal: Goal,
    *,
    tokens: _Array,
    request_s: _Array,
    tpot_s: _Array,
    num_devices: int,
    axes: tuple[int, ...] | None = None,
) -> _Array:
    """Score of requests, over some axes of arrays of one shape, or over all of them.

    tokens: output tokens of each request.
    request_s: seconds from request to last token.
    tpot_s: seconds per output token after the first.
    num_devices: devices in use.
    """
    if goal.objective is Objective.TPOT:
        return np.asarray(1 / tpot_s.mean(axis=axes))
    if goal.objective is Objective.TPOT_P95:
        return np.asarray(1 / np.percentile(tpot_s, 95, axis=axes))
    return np.asarray(score_of_speed(goal, tokens.sum(axis=axes) / request_s.sum(axis=axes), num_devices))


def score_of_speed(goal: Goal, tokens_per_s: float, num_devices: int) -> float:
    """Score where only the speed is known; TPOT is then its inverse.

    For the objective `devices` the score is the speed, too: the search, not the score, keeps the number of devices
    down.
    """
    if goal.objective is Objective.TOKENS_PER_GPU:
        return tokens_per_s / num_devices
    if goal.objective is Objective.COST:
        assert goal.price_per_hour is not None, "Goal requires a price for this objective"
        return tokens_per_s * _SECONDS_PER_HOUR / (goal.price_per_hour * num_devices)
    return tokens_per_s


def preference(plan: Plan) -> tuple[float, ...]:
    """Sort key for plans made for one goal, the best one last: score, or the devices saved and then the speed.

    Under a load, that of `Goal.score`. A prediction has the median TPOT only, which serves for the objective
    `tpot-p95`, too.
    """
    goal, candidate = plan.goal, plan.chosen
    if plan.under_load is not None:
        return plan.under_load.predictions[candidate.policy].score(plan.under_load.goal)
    metrics, num_devices = candidate.prediction.metrics, len(candidate.devices)
    tokens_per_s = metrics.figures.tokens_per_s
    if goal.objective is Objective.DEVICES:
        return -num_devices, tokens_per_s
    if goal.objective in (Objective.TPOT, Objective.TPOT_P95):
        return -metrics.tpot_s, tokens_per_s
    return score_of_speed(goal, tokens_per_s, num_devices), tokens_per_s


class Limit(NamedTuple):
    """One limit of a goal for a message: field, value, and the value reached, in the field's unit.

    share: 1 or more where the limit is met; the smaller, the further it is missed.
    """

    field: str
    wanted: float
    reached: float
    share: float


def limits(goal: Goal, *, tokens_per_s: float, tpot_s: float, ttft_s: float) -> list[Limit]:
    """Every limit of a goal with the value that an option reaches."""
    found = []
    if goal.min_tokens_per_s is not None:
        share = tokens_per_s / goal.min_tokens_per_s
        found.append(Limit("min_tokens_per_s", goal.min_tokens_per_s, tokens_per_s, share))
    for field, most_s, option_s in (("tpot_ms", goal.tpot_s, tpot_s), ("ttft_ms", goal.ttft_s, ttft_s)):
        if most_s is not None:
            found.append(Limit(field, most_s * 1e3, option_s * 1e3, most_s / max(option_s, _LEAST_S)))
    return found
