"""Attention of a few rows over a long cache, on a CPU.

R rows, N slots (prefix, then tree), G key/value heads, J query heads that share one of them, D head dimension.
The J heads of a group are stacked below each other as M = R * J rows, so that keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.specs import ModelSpec

__all__ = ["TreeAttention", "causal_visibility", "tree_visibility"]

# From this many multiplications per product on, two batched products with a softmax between beat the fused bf16
# kernel (which is the better one in fp32 at any size).
_UNFUSED_MULTIPLICATIONS = 600_000
_UNFUSED_SLOTS = 64
_ADDITIVE = np.array([-np.inf, 0.0], dtype=np.float32)

Visibility = np.ndarray[Any, np.dtype[np.uint8]]


def tree_visibility(ancestors: Sequence[int], tree_length: int) -> Visibility:
    """Which tree slot each row sees, 0 or 1, [R, tree_length + R]; the rows themselves sit behind the tree.

    Bit s of `ancestors[r]` makes slot s visible to row r. Every row sees itself.
    """
    num_rows = len(ancestors)
    width = tree_length + num_rows
    num_bytes = (width + 7) // 8
    packed = bytearray()
    for row, bits in enumerate(ancestors):
        if bits < 0 or bits >> width:
            raise ValueError(f"ancestors[{row}] is {bits:#x}; expected bits below tree slot {width}")
        packed += (bits | 1 << (tree_length + row)).to_bytes(num_bytes, "little")
    as_bytes = np.frombuffer(packed, dtype=np.uint8).reshape(num_rows, num_bytes)
    return np.unpackbits(as_bytes, axis=1, count=width, bitorder="little")


def causal_visibility(num_rows: int) -> Visibility:
    """Every row sees itself and the rows before it, [R, R]."""
    return np.tril(np.ones((num_rows, num_rows), dtype=np.uint8))


class TreeAttention:
    """Attention for one number of rows: `prepare` once per forward, then one call per layer."""

    def __init__(self, spec: ModelSpec, *, num_rows: int, dtype: torch.dtype) -> None:
        self._rows, self._group = num_rows, spec.group_size
        self._width = spec.query_size
        # [1, G, R * J, D]; the caller fills it through the view.
        self._queries = torch.empty(1, spec.num_kv_heads, num_rows * spec.group_size, spec.head_dim, dtype=dtype)
        self.queries_GRJD = self._queries.view(spec.num_kv_heads, num_rows, spec.group_size, spec.head_dim)
        self._mask: Tensor | None = None
        self._prefix_length = 0
        self._fused = True

    def prepare(self, visible: Visibility, *, prefix_length: int, capacity: int) -> int:
        """Set what the rows see: all of the prefix, and of the slots behind it those in `visible`.

        Answers how many of the cache's slots the keys and values of the following calls must span.
        """
        length = prefix_length + int(visible.shape[1])
        self._fused = not self._is_unfused_faster(length)
        if not self._fused:
            # A product of a new shape is compiled first, which takes longer than it saves: few shapes, then.
            length = min(-(-length // _UNFUSED_SLOTS) * _UNFUSED_SLOTS, capacity)
        self._prefix_length = prefix_length
        sees_all = self._rows == 1 and visible.shape[1] == length - prefix_length and bool(visible.all())
        self._mask = None if sees_all else self._additive_mask(visible, length)
        return length

    def _is_unfused_faster(self, length: int) -> bool:
        products = self._queries.numel() * length
        return self._queries.dtype == torch.bfloat16 and products >= _UNFUSED_MULTIPLICATIONS

    def _additive_mask(self, visible: Visibility, length: int) -> Tensor:
        """0 where visible, else -inf, [R * J, slots]: all slots for the fused kernel, else those behind the prefix."""
        first = self._prefix_length if self._fused else 0
        num_slots = first + length - self._prefix_length
        mask_RJN = np.full((self._rows, self._group, num_slots), -np.inf, dtype=np.float32)
        mask_RJN[:, :, :first] = 0.0
        mask_RJN[:, :, first : first + visible.shape[1]] = _ADDITIVE[visible][:, None]
        mask = torch.from_numpy(mask_RJN).view(self._rows * self._group, num_slots)
        return mask.to(self._queries.dtype) if self._fused else mask

    def __call__(self, keys: Tensor, values: Tensor) -> Tensor:
        """softmax(q k^T, over visible slots) v, [R, J * G * D]; keys, values [1, G, N, D]; queries come scaled."""
        if self._fused:
            mixed = F.scaled_dot_product_attention(self._queries, keys, values, attn_mask=self._mask, scale=1.0)
            # The kernel stores [R * J, G, D]: one row of it is a view.
            return mixed.transpose(1, 2).reshape(self._rows, self._width)
        return self._unfused(keys.squeeze(0), values.squeeze(0))

    def _unfused(self, keys: Tensor, values: Tensor) -> Tensor:
        queries = self._queries.squeeze(0)
        # Keys from the left: the bf16 product with transposed keys on the right takes twice as long.
        transposed = torch.bmm(keys, queries.transpose(1, 2)).transpose(1, 2)
        scores = torch.empty(transposed.shape, dtype=torch.float32).copy_(transposed)
        if self._mask is not None:
            scores[:, :, self._prefix_length :].add_(self._mask)
        shares = torch.softmax(scores, -1).to(values.dtype)
        return torch.bmm(shares, values).transpose(0, 1).reshape(self._rows, self._width)
