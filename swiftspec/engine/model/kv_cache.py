"""Static key/value caches laid out [prefix | tree]: verified tokens first, then unverified nodes.

A cache knows slots, not tokens: the policy knows which node is in which slot. The caches of a batch are found and
checked here before anything is computed.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import Chunk, Entry, ForwardBatch
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind

_Cache = TypeVar("_Cache")
_KVCache = TypeVar("_KVCache", bound="KVCache")
_Forward = TypeVar("_Forward")


class KVCache:
    """Keys and values of one sequence, all layers in one tensor, so that moving a token is one gather.

    Moving is exact: a key was rotated by its position, and a kept node's position does not change.

    data: [layers, 2 (keys, values), kv_heads, slots, head_dim]. Keys of `key_block` neighbouring slots lie transposed:
        [.., slots / key_block, head_dim, key_block].
    capacity: slots that may be used; `spare` more can be written to.
    prefix_length, tree_length: slots in use: the prefix first, then the tree, of at most `tree_slots` nodes.
    features: fp32 [capacity, feature_size]: what a head reads of each slot, see `FeatureTaps`; moved with keys and
        values.
    tenant: whose sequence it is: number of a tenant, or 0 for the model itself.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        capacity: int,
        dtype: torch.dtype,
        spare: int = 0,
        key_block: int = 1,
        feature_size: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; expected at least one slot")
        num_slots = -(-(capacity + spare) // key_block) * key_block
        shape = (spec.num_layers, 2, spec.num_kv_heads, num_slots, spec.head_dim)
        self.data: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.key_block, self._keys = key_block, None
        if key_block > 1:
            blocks = (num_slots // key_block, spec.head_dim, key_block)
            self._keys = self.data[:, 0].view(spec.num_layers, spec.num_kv_heads, *blocks).numpy()
        self.features = torch.zeros(capacity, feature_size, device=device)
        self.capacity = self.tree_slots = capacity
        self.prefix_length = 0
        self.tree_length = 0
        self.tenant = 0

    @property
    def length(self) -> int:
        return self.prefix_length + self.tree_length

    def reset(self) -> None:
        self.prefix_length = 0
        self.tree_length = 0

    def require_room(self, num_rows: int) -> None:
        """ValueError unless `num_rows` more slots are free."""
        if self.prefix_length + self.tree_length + num_rows > self.capacity:
            raise ValueError(
                f"cache capacity is {self.capacity} slots; {self.length} in use and {num_rows} more do not fit"
            )

    def require_tree_room(self, num_rows: int) -> None:
        """ValueError unless `num_rows` more slots are free, and the tree may grow by as many."""
        self.require_room(num_rows)
        if self.tree_length + num_rows > self.tree_slots:
            raise ValueError(
                f"cache has {self.tree_slots} tree slots; {self.tree_length} in use and {num_rows} more do not fit"
            )

    def extend_prefix(self, num_rows: int) -> None:
        """Count rows written after the prefix as verified. Only while the tree is empty."""
        assert self.tree_length == 0
        self.prefix_length += num_rows

    def extend_tree(self, num_rows: int) -> None:
        """Count rows written after the tree as its newest nodes."""
        self.tree_length += num_rows

    def keep(self, slots: Sequence[int], num_verified: int) -> None:
        """Keep the tree slots `slots` (0 = first tree row), in this order, and drop the rest of the tree.

        The first `num_verified` join the prefix; the others are the new tree, numbered from 0 again.
        """
        if not 0 <= num_verified <= len(slots):
            raise ValueError(f"num_verified is {num_verified}; expected 0 to {len(slots)}, the number of kept slots")
        if len(set(slots)) != len(slots) or any(not 0 <= slot < self.tree_length for slot in slots):
            raise ValueError(f"slots are {list(slots)}; expected distinct numbers below {self.tree_length}")
        in_place = 0
        while in_place < len(slots) and slots[in_place] == in_place:
            in_place += 1
        if in_place < len(slots):
            self._move(slots[in_place:], in_place)
        self.prefix_length += num_verified
        self.tree_length = len(slots) - num_verified

    def _move(self, slots: Sequence[int], first: int) -> None:
        source = torch.tensor(slots).add_(self.prefix_length)
        start = self.prefix_length + first
        moved = self.data if self._keys is None else self.data[:, 1]
        kept = moved.index_select(-2, source)
        moved[..., start : start + len(slots), :] = kept
        if self._keys is not None:
            blocks, places = np.divmod(source.numpy(), self.key_block)
            to_blocks, to_places = np.divmod(np.arange(start, start + len(slots)), self.key_block)
            self._keys[:, :, to_blocks, :, to_places] = self._keys[:, :, blocks, :, places]
        if self.features.numel():
            self.features[start : start + len(slots)] = self.features.index_select(0, source)


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
                if cache.tree_length:
                    raise ValueError(f"cache holds a tree of {cache.tree_length} slots; expected none at prefill")
                cache.require_room(len(entry.tokens))
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


class PendingHalf(Generic[_Forward]):
    """A forward between its first and its second half, with nothing done to its caches in between."""

    def __init__(self) -> None:
        # Entries, the lengths of their caches, and the forward.
        self._pending: tuple[tuple[Entry, ...], list[tuple[KVCache, int, int]], _Forward] | None = None

    def hold(self, batch: ForwardBatch, caches: Sequence[KVCache], forward: _Forward) -> None:
        self._pending = batch.entries, _lengths(caches), forward

    def take(self, batch: ForwardBatch, caches: Sequence[KVCache]) -> _Forward | None:
        """The forward that a second half completes; of any other batch None, and what is held is given up.

        ValueError unless the first half came right before.
        """
        pending, self._pending = self._pending, None
        if batch.kind is not ForwardKind.SECOND_HALF:
            return None
        if pending is None or pending[:2] != (batch.entries, _lengths(caches)):
            sequences = ", ".join(str(entry.sequence) for entry in batch.entries)
            raise ValueError(f"second half of sequences {sequences}; expected their first half right before it")
        return pending[2]


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
