"""A few functions that scipy has, too: it takes a third of a second to load, which every plan would wait for."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]


def root(rising: Callable[[float], float], low: float, high: float, *, within: float = 1e-12) -> float:
    """Where a function that never falls crosses 0 between two numbers."""
    while high - low > within:
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def logistic(logits: npt.ArrayLike) -> _Floats:
    """Probabilities of log-odds."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * np.asarray(logits)))


def log_sum_exp(values: _Floats) -> _Floats:
    """Logarithms of the sums of exponentials along the last axis."""
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(values - top).sum(axis=-1)))
