"""Features: parts of a target's residual stream that a head reads; a cache holds them by slot, as it does keys.

A head in another process has a store in the cache's place, which fills from what comes beside the target's verdicts.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from swiftspec.policies.effects import Message, Verdict

_FIRST = struct.Struct("<I")  # position of the first feature of a payload; fp32 numbers follow, little-endian
_NUMBER_BYTES = 4


class Features(Protocol):
    """What a head reads of its target: features fp32 [capacity, width], those of the prefix valid."""

    features: torch.Tensor
    prefix_length: int


class FeatureTaps(NamedTuple):
    """Places where a decoder notes its residual stream.

    layers: before which it is noted; the number of layers means after the last one. size: of its numbers, the first.
    """

    layers: tuple[int, ...]
    size: int

    @property
    def width(self) -> int:
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


class FeatureStore:
    """Features of one sequence whose target is in another process. Attributes: those of `Features`."""

    def __init__(self, *, capacity: int, width: int) -> None:
        self.features = torch.zeros(capacity, width)
        self.prefix_length = 0


class FeatureSender:
    """Features of one request, on their way out: a verdict takes all that no verdict took before."""

    def __init__(self, cache: Features) -> None:
        self._cache = cache
        self._num_sent = 0

    def outgoing(self, message: Message) -> bytes:
        if not isinstance(message, Verdict):
            return b""
        first, self._num_sent = self._num_sent, self._cache.prefix_length
        return _FIRST.pack(first) + self._cache.features[first : self._num_sent].numpy().tobytes()


class FeatureReceiver:
    """Features of one request, on their way in.

    store: is emptied, and filled by verdicts. num_prompt_tokens: without the last one: as many features are due first.
    """

    def __init__(self, store: FeatureStore, *, num_prompt_tokens: int) -> None:
        store.prefix_length = 0
        self._store = store
        self._num_due = num_prompt_tokens

    def takes(self, message: Message, payload: bytes) -> bool:
        """Store what came beside a message; False if it is not just what was due."""
        if not isinstance(message, Verdict):
            return not payload
        store, self._num_due = self._store, self._num_due + len(message.tokens)
        capacity, width = store.features.shape
        known, due = store.prefix_length, self._num_due
        size = _FIRST.size + _NUMBER_BYTES * width * (due - known)
        if due > capacity or len(payload) != size or _FIRST.unpack_from(payload)[0] != known:
            return False
        # Not by torch, whose threads would take turns with those of forwards for a copy.
        numbers = np.frombuffer(payload, dtype="<f4", offset=_FIRST.size)
        store.features.numpy()[known:due] = numbers.reshape(due - known, width)
        store.prefix_length = due
        return True


def most_payload_bytes(store: Features) -> int:
    """Bytes of the largest payload: the features of a whole cache."""
    return _FIRST.size + _NUMBER_BYTES * store.features.numel()
