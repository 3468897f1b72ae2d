"""Streams of random numbers. No SimPy and no policy here; no torch."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

__all__ = ["uniforms"]

_BLOCK = 64  # drawing one number at a time costs several times as much


def uniforms(seed: np.random.Generator | Sequence[int]) -> Callable[[], float]:
    """Draws from [0, 1), equal to the generator's own one by one. An unused stream costs nothing."""
    return _stream(seed).__next__


def _stream(seed: np.random.Generator | Sequence[int]) -> Iterator[float]:
    random = np.random.default_rng(seed).random
    while True:
        yield from random(_BLOCK).tolist()
