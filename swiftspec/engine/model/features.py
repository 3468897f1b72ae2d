"""Features: parts of a target's residual stream that a head reads; a cache holds them by slot, as it does keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["FeatureTaps"]


class FeatureTaps(NamedTuple):
    """Places where a decoder notes its residual stream.

    layers: before which it is noted; the number of layers means after the last one. size: of its numbers, the first.
    """

    layers: tuple[int, ...]
    size: int

    @property
    def width(self) -> int:
        """Numbers of a token's feature."""
        return len(self.layers) * self.size

    def run(self, forward: Any, layers: Sequence[int], run: Callable[[Any, Sequence[int]], None]) -> None:
        """The next layers of a forward, by `run`; its residual stream is noted in the slots that its rows will have."""
        done, end = layers[0], layers[-1] + 1
        for layer, place in sorted(zip(self.layers, range(0, self.width, self.size), strict=True)):
            if done <= layer <= end:
                run(forward, range(done, layer))
                done = layer
                self._note(forward, place)
        run(forward, range(done, end))

    def _note(self, forward: Any, place: int) -> None:
        end = 0
        for sequence in forward.inputs:
            first, end, cache = end, end + len(sequence.tokens), sequence.cache
            slots = slice(cache.length, cache.length + end - first)
            cache.features[slots, place : place + self.size] = forward.residual[first:end, : self.size]
