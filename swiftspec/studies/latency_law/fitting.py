"""Fit of the law to mean latencies at several rates, by least squares."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from swiftspec.studies.latency_law.coverage import ExpertCoverage
from swiftspec.studies.latency_law.law import LatencyLaw

LEAST_POINTS = 3  # more than the law has numbers
_NEAREST = 0.999  # of a fitted saturation's inverse times the highest rate
_Array = npt.NDArray[np.float64]


def fit_latencies(
    rates: Sequence[float], latencies_s: Sequence[float], *, coverage: ExpertCoverage | None = None, rows: int = 1
) -> LatencyLaw:
    """The law with the least sum of squared errors of the latencies.

    Parameters
    ----------
    rates : sequence of float
        Requests per second, of Poisson arrivals; 0 for requests that were alone.
    latencies_s : sequence of float
        Mean end-to-end seconds at each rate.
    coverage, rows
        As in `LatencyLaw`.

    Raises
    ------
    ValueError
        If there are fewer than three different rates, or a latency is not positive.
    """
    if len(rates) != len(latencies_s):
        raise ValueError(f"latencies_s has {len(latencies_s)} values; expected {len(rates)}, one for each rate")
    if len(set(rates)) < LEAST_POINTS:
        raise ValueError(f"rates has {len(set(rates))} different ones; expected at least {LEAST_POINTS}")
    if bad := [value for value in latencies_s if not 0 < value < math.inf]:
        raise ValueError(f"latencies_s has {bad[0]}; expected positive numbers of seconds")
    by_rate, seconds = np.array(rates, float), np.array(latencies_s, float)
    scale_s, most = float(seconds.min()), _NEAREST / float(by_rate.max())

    def law(found: _Array) -> LatencyLaw:
        return LatencyLaw(
            c1_s=float(found[0]) * scale_s, c2_s=float(found[1]) * most, coverage=coverage, rows=max(1, rows)
        )

    def errors(found: _Array) -> _Array:
        fitted = law(found)
        return np.array([fitted.latency_s(rate) for rate in rates]) / scale_s - seconds / scale_s

    start = _start(by_rate, seconds, law(np.array([1.0, 0.0]))) / (scale_s, most)
    bounds = ([1e-6, 0.0], [np.inf, 1.0])
    # One further start: where the first one is far off, the pole's wall can hold it.
    found = min(
        (least_squares(errors, first, bounds=bounds, x_scale="jac") for first in (start, np.array([1.0, 0.5]))),
        key=lambda one: float(one.cost),
    )
    return law(found.x)


def _start(rates: _Array, seconds: _Array, law: LatencyLaw) -> _Array:
    """C1 and C2 from L = C1 factor + C2 B, where B is RPS L by Little's law: linear in both."""
    others = rates * seconds
    factors = np.array([law.reading_factor(float(number)) for number in others])
    c1_s, c2_s = np.linalg.lstsq(np.stack([factors, others], axis=1), seconds, rcond=None)[0].tolist()
    within = _NEAREST / float(rates.max())
    return np.array([max(c1_s, 1e-3 * float(seconds.min())), min(max(c2_s, 1e-3 * within), 0.99 * within)])


def r_squared(law: LatencyLaw, rates: Sequence[float], latencies_s: Sequence[float]) -> float:
    """Share of the latencies' variance that a law explains: 1 is all of it; below 0 it is worse than their mean."""
    seconds = np.array(latencies_s, float)
    left = np.square(seconds - [law.latency_s(rate) for rate in rates]).sum()
    total = np.square(seconds - seconds.mean()).sum()
    return float(1 - left / total) if total else float(not left)
