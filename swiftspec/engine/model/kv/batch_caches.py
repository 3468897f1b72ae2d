"""Caches of the sequences in a batch: found and checked. Nothing here computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from swiftspec.engine.model.forward_batch import Chunk, Entry, ForwardBatch
from swiftspec.engine.model.kv.cache import KVCache

__all__ = ["PendingHalf", "cache_of", "checked_caches"]

_Cache = TypeVar("_Cache")
_KVCache = TypeVar("_KVCache", bound=KVCache)
_Forward = TypeVar("_Forward")


def cache_of(sequence: int, caches: Sequence[_Cache]) -> _Cache:
    """The cache of a sequence. ValueError if there is no such sequence."""
    if not 0 <= sequence < len(caches):
        raise ValueError(f"sequence is {sequence}; expected 0 to {len(caches) - 1}")
    return caches[sequence]


def checked_caches(batch: ForwardBatch, caches: Sequence[_KVCache], *, vocab_size: int) -> list[_KVCache]:
    """The cache of each entry.

    ValueError, naming the sequence, if there is no such sequence, its cache has too little room, a chunk would follow a
    tree, a row sees a slot that there is not, or a token or a position does not exist.
    """
    found = []
    for entry in batch.entries:
        cache = cache_of(entry.sequence, caches)
        try:
            if isinstance(entry, Chunk):
                cache.require_prefix_room(len(entry.tokens))
                _require_range("token", entry.tokens, vocab_size)
            else:
                cache.require_tree_room(len(entry.rows))
                tokens, positions, ancestors = zip(*entry.rows, strict=True)
                _require_range("token", tokens, vocab_size)
                _require_range("position", positions, cache.capacity)
                _require_slots(ancestors, cache.tree_length)
        except ValueError as error:
            raise ValueError(f"sequence {entry.sequence}: {error}") from None
        found.append(cache)
    return found


class _Pending(NamedTuple, Generic[_Forward]):
    entries: tuple[Entry, ...]
    lengths: list[tuple[KVCache, int, int]]
    forward: _Forward


class PendingHalf(Generic[_Forward]):
    """A forward between its first and its second half, with nothing done to its caches in between."""

    def __init__(self) -> None:
        self._pending: _Pending[_Forward] | None = None

    def hold(self, batch: ForwardBatch, caches: Sequence[KVCache], forward: _Forward) -> None:
        """Hold a forward whose first half is computed."""
        self._pending = _Pending(batch.entries, _lengths(caches), forward)

    def take(self, batch: ForwardBatch, caches: Sequence[KVCache]) -> _Forward:
        """The forward that `batch` completes. ValueError unless its first half came right before."""
        pending = self._pending
        self.drop()
        if pending is None or (pending.entries, pending.lengths) != (batch.entries, _lengths(caches)):
            sequences = ", ".join(str(entry.sequence) for entry in batch.entries)
            raise ValueError(f"second half of sequences {sequences}; expected their first half right before it")
        return pending.forward

    def drop(self) -> None:
        """Give up what is held: another forward begins."""
        self._pending = None


def _require_range(what: str, numbers: Sequence[int], end: int) -> None:
    if min(numbers) < 0 or max(numbers) >= end:
        wrong = next(number for number in numbers if not 0 <= number < end)
        raise ValueError(f"{what} is {wrong}; expected 0 to {end - 1}")


def _require_slots(ancestors: Sequence[int], tree_length: int) -> None:
    num_slots = tree_length + len(ancestors)
    for index, bits in enumerate(ancestors):
        if bits >> num_slots:  # not 0 for a negative number, either
            raise ValueError(f"ancestors[{index}] is {bits:#x}; expected bits below tree slot {num_slots}")


def _lengths(caches: Sequence[KVCache]) -> list[tuple[KVCache, int, int]]:
    return [(cache, cache.prefix_length, cache.tree_length) for cache in caches]
