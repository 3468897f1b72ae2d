"""Static key/value cache laid out [prefix | tree]: verified tokens first, then unverified nodes.

Knows slots, not tokens: the policy knows which node is in which slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftspec.models.spec import ModelSpec

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of one sequence, all layers in one tensor, so that moving a token is one gather.

    Moving is exact: a key was rotated by its position, and a kept node's position does not change.

    Attributes
    ----------
    data : Tensor
        [layers, 2 (keys, values), kv_heads, capacity, head_dim].
    capacity : int
        Slots that may be used; `spare` more can be written to.
    prefix_length, tree_length : int
        Slots in use: the prefix first, then the tree.
    features : Tensor
        fp32 [capacity, feature_size]: what a head reads of each slot, see `FeatureTaps`; moved with keys and values.
    tenant : int
        Whose sequence it is: number of a tenant, or 0 for the model itself.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        capacity: int,
        dtype: torch.dtype,
        spare: int = 0,
        feature_size: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; expected at least one slot")
        shape = (spec.num_layers, 2, spec.num_kv_heads, capacity + spare, spec.head_dim)
        self.data: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.features = torch.zeros(capacity, feature_size, device=device)
        self.capacity = capacity
        self.prefix_length = 0
        self.tree_length = 0
        self.tenant = 0

    @property
    def length(self) -> int:
        """Slots in use."""
        return self.prefix_length + self.tree_length

    def reset(self) -> None:
        """Forget everything."""
        self.prefix_length = 0
        self.tree_length = 0

    def require_room(self, num_rows: int) -> None:
        """ValueError unless `num_rows` more slots are free."""
        if self.prefix_length + self.tree_length + num_rows > self.capacity:
            raise ValueError(
                f"cache capacity is {self.capacity} slots; {self.length} in use and {num_rows} more do not fit"
            )

    def require_tree_room(self, num_rows: int) -> None:
        """ValueError unless the tree may grow by `num_rows` nodes."""
        self.require_room(num_rows)

    def require_prefix_room(self, num_tokens: int) -> None:
        """ValueError unless the prefix may grow by `num_tokens` tokens, which it may not while there is a tree."""
        if self.tree_length:
            raise ValueError(f"cache holds a tree of {self.tree_length} slots; expected none at prefill")
        self.require_room(num_tokens)

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
        kept = self.data.index_select(3, source)
        self.data[:, :, :, start : start + len(slots)] = kept
        if self.features.numel():
            self.features[start : start + len(slots)] = self.features.index_select(0, source)
