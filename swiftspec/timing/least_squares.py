"""Least squares whose factors are never negative: seconds of costs."""

from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[np.float64]


def never_negative(columns: _Array, wanted: _Array) -> _Array:
    """Least squares with factors of at least 0: the best of all choices of which are above it. columns (values, few).

    The costs are few, and scipy.optimize takes a fifth of a second to load, which every plan would wait for.
    """
    count = columns.shape[1]
    best, least = np.zeros(count), float(np.sum(wanted**2))
    for chosen in chain.from_iterable(combinations(range(count), size) for size in range(1, count + 1)):
        found, *_ = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)
        missed = float(np.sum((columns[:, chosen] @ found - wanted) ** 2))
        if missed < least and (found >= 0).all():
            best, least = np.zeros(count), missed
            best[list(chosen)] = found
    return best
