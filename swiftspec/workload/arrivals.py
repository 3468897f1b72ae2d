"""Arrival times, drawn from an arrival process."""

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.distributions import Arrivals, Process

__all__ = ["arrival_times"]

_Times = npt.NDArray[np.float64]
_LEAST_GAP = float(np.finfo(float).tiny)  # gaps of a small shape are so short that all of them may round to 0


def arrival_times(arrivals: Arrivals, num_requests: int, rng: np.random.Generator) -> _Times:
    """Seconds from 0 to each arrival, ascending; all 0 in a closed loop, where the ends of requests release others.

    The gaps, that before the first request included, are stretched until they add up to `num_requests` / rate, as
    `vllm bench serve` does: the mean rate is then exact with any seed. A seed has the same pattern at every rate.

    Raises
    ------
    ValueError
        If the process is a replay, which has no distribution, or its stages have fewer requests.
    """
    if arrivals.process is Process.CLOSED:
        return np.zeros(num_requests)
    if arrivals.stages:
        return _staged(arrivals, num_requests, rng)
    times = np.cumsum(np.maximum(_gaps(arrivals, num_requests, rng), _LEAST_GAP))
    assert arrivals.rate is not None  # as every open process has one
    scaled: _Times = times / times[-1] * (num_requests / arrivals.rate)
    return scaled


def _staged(arrivals: Arrivals, num_requests: int, rng: np.random.Generator) -> _Times:
    """Arrivals of one stage after another, each with exactly its rate."""
    most = arrivals.num_requests
    assert most is not None, "there are stages"
    if num_requests > most:
        raise ValueError(f"num_requests is {num_requests}; the stages {arrivals} have {most}")
    start_s, found = 0.0, []
    for stage in arrivals.stages:
        if stage.num_requests:
            alone = arrivals.model_copy(update={"rate": stage.rate, "stages": ()})
            found.append(start_s + arrival_times(alone, stage.num_requests, rng))
        start_s += stage.seconds
    return np.concatenate(found)[:num_requests]


def _gaps(arrivals: Arrivals, num_requests: int, rng: np.random.Generator) -> _Times:
    """Gaps before requests, in any unit."""
    match arrivals.process:
        case Process.CONSTANT:
            return np.ones(num_requests)
        case Process.POISSON:
            return rng.standard_exponential(num_requests)
        case Process.GAMMA:
            assert arrivals.shape is not None
            return rng.standard_gamma(arrivals.shape, num_requests)
        case other:
            raise ValueError(f"arrivals is {other}; expected {Arrivals.syntax}")
