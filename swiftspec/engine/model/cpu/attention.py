"""Rows of a CPU decoder's forward: tokens, positions and visibility of each sequence, and attention over its cache.

R rows, N slots (prefix, then tree), G key/value heads, J query heads that share one of them, D head dimension. The J
heads of a group are stacked as M = R * J rows, so that keys and values are never repeated.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.forward_batch import Chunk, Entry
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.models.spec import ModelSpec

_ADDITIVE = np.array([-np.inf, 0.0], dtype=np.float32)

Visibility = np.ndarray[Any, np.dtype[np.uint8]]


def packed_visibility(ancestors: Sequence[int], tree_length: int) -> bytes:
    """Tree slots that each row sees, a bit each, row by row in whole bytes; the rows themselves come after the tree.

    Bit s of `ancestors[r]` makes slot s visible to row r, a slot of the tree or of these rows. Every row sees itself.
    """
    num_bytes = (tree_length + len(ancestors) + 7) // 8
    own = 1 << tree_length
    return b"".join([(bits | own << row).to_bytes(num_bytes, "little") for row, bits in enumerate(ancestors)])


def tree_visibility(ancestors: Sequence[int], tree_length: int) -> Visibility:
    """The same as numbers 0 or 1, [R, tree_length + R]."""
    num_rows = len(ancestors)
    packed = np.frombuffer(packed_visibility(ancestors, tree_length), dtype=np.uint8).reshape(num_rows, -1)
    return np.unpackbits(packed, axis=1, count=tree_length + num_rows, bitorder="little")


class SequenceInput(NamedTuple):
    """Rows of one sequence, and the cache to which they are appended.

    ancestors: bit s is tree slot s, see `Row`; None for rows of a prompt, which see themselves and those before.
    num_logits: logits are wanted of so many of the last rows.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    ancestors: Sequence[int] | None
    cache: KVCache
    num_logits: int

    @property
    def visible(self) -> Visibility:
        """What each row sees after the prefix, 0 or 1: slots of the tree, then these rows."""
        if self.ancestors is None:
            return np.tri(len(self.tokens), dtype=np.uint8)
        return tree_visibility(self.ancestors, self.cache.tree_length)

    def extend_cache(self) -> None:
        """Count the rows, which are in the cache now: a prompt's as prefix, others as nodes."""
        if self.ancestors is None:
            self.cache.extend_prefix(len(self.tokens))
        else:
            self.cache.extend_tree(len(self.tokens))


def sequence_input(entry: Entry, cache: KVCache) -> SequenceInput:
    if isinstance(entry, Chunk):
        first = cache.prefix_length
        return SequenceInput(entry.tokens, range(first, first + len(entry.tokens)), None, cache, entry.num_logits)
    tokens, positions, ancestors = zip(*entry.rows, strict=True)
    return SequenceInput(tokens, positions, ancestors, cache, len(tokens))


class TreeAttention:
    """Attention for one number of rows: `prepare` once per forward, then one call per layer."""

    def __init__(self, spec: ModelSpec, *, num_rows: int, dtype: torch.dtype) -> None:
        self._rows, self._group = num_rows, spec.group_size
        self._width = spec.query_size
        # [1, G, R * J, D]; the caller fills it through the view.
        self._queries = torch.empty(1, spec.num_kv_heads, num_rows * spec.group_size, spec.head_dim, dtype=dtype)
        self.queries_GRJD = self._queries.view(spec.num_kv_heads, num_rows, spec.group_size, spec.head_dim)
        self._mask: Tensor | None = None  # [R * J, N]: 0 where visible, else -inf

    def prepare(self, visible: Visibility, *, prefix_length: int) -> int:
        """Set what the rows see: all of the prefix, and the slots after it that are in `visible`.

        Returns the number of cache slots that the keys and values of the following calls must span.
        """
        num_slots = prefix_length + int(visible.shape[1])
        self._mask = None
        if self._rows > 1 or not visible.all():
            mask_RJN = np.zeros((self._rows, self._group, num_slots), dtype=np.float32)
            mask_RJN[:, :, prefix_length:] = _ADDITIVE[visible][:, None]
            self._mask = torch.from_numpy(mask_RJN).view(-1, num_slots).to(self._queries.dtype)
        return num_slots

    def __call__(self, keys: Tensor, values: Tensor) -> Tensor:
        """softmax(q k^T, over visible slots) v, [R, J * G * D]; keys, values [1, G, N, D]; queries come scaled."""
        mixed = F.scaled_dot_product_attention(self._queries, keys, values, attn_mask=self._mask, scale=1.0)
        # The kernel stores [R * J, G, D]: one row of it is a view.
        return mixed.transpose(1, 2).reshape(self._rows, self._width)
