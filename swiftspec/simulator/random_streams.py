"""Streams of random numbers. No SimPy and no policy here; no torch."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

_BLOCK = 64  # drawing one number at a time costs several times as much
_STREAMS = 4096  # as many as a plan's requests begin, again and again for each of its options


def uniforms(seed: Sequence[int]) -> Callable[[], float]:
    """Draws from [0, 1), equal to a generator's own one by one. An unused stream costs nothing."""
    return _stream(tuple(seed)).__next__


def _stream(entropy: tuple[int, ...]) -> Iterator[float]:
    yield from _first_block(entropy)
    rng = np.random.default_rng(entropy)
    rng.random(_BLOCK)
    while True:
        yield from rng.random(_BLOCK).tolist()


@lru_cache(maxsize=_STREAMS)
def _first_block(entropy: tuple[int, ...]) -> tuple[float, ...]:
    """Kept, since making a generator takes as long as simulating a round."""
    return tuple(np.random.default_rng(entropy).random(_BLOCK).tolist())
