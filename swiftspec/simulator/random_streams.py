"""Streams of random numbers. No SimPy and no policy here; no torch."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

__all__ = ["uniforms"]

_BLOCK = 64  # a number drawn alone costs several times as much


def uniforms(seed: np.random.Generator | Sequence[int]) -> Callable[[], float]:
    """Draws from [0, 1), the same as the generator's own one by one. A stream that nobody draws from costs nothing."""
    return _stream(seed).__next__


def _stream(seed: np.random.Generator | Sequence[int]) -> Iterator[float]:
    random = np.random.default_rng(seed).random
    while True:
        yield from random(_BLOCK).tolist()
