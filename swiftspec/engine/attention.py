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
        # [1, G, R * J, D], filled through `queries_GJRD`-ordered views before each call.
        self._queries = torch.empty(1, spec.num_kv_heads, num_rows * spec.group_size, spec.head_dim, dtype=dtype)
        self.queries_GRJD = self._queries.view(spec.num_kv_heads, num_rows, spec.group_size, spec.head_dim)
        self._mask: Tensor | None = None
        self._prefix_length = 0
        self._fused = True

    def prepare(self, visible: Visibility | None, *, prefix_length: int, length: int) -> None:
        """Set what the rows see: all of the prefix, and of the slots behind it those in `visible` (None = all).

        `length` counts the slots in use, this forward's rows included.
        """
        products = self._queries.numel() * length
        self._fused = self._queries.dtype != torch.bfloat16 or products < _UNFUSED_MULTIPLICATIONS
        self._prefix_length = prefix_length
        if visible is None:
            self._mask = None
            return
        tail_RT = torch.from_numpy(_ADDITIVE[visible])
        if self._fused:
            mask_RJN = torch.zeros(self._rows, self._group, length, dtype=self._queries.dtype)
            mask_RJN[:, :, prefix_length:] = tail_RT.unsqueeze(1)
            self._mask = mask_RJN.view(-1, length)
        else:
            self._mask = tail_RT.repeat_interleave(self._group, dim=0)

    def __call__(self, keys: Tensor, values: Tensor) -> Tensor:
        """softmax(q k^T, over visible slots) v, [R, J * G * D], for keys and values [1, G, N, D]. Queries come scaled."""
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
