"""Common parts of a head's and a block drafter's forward with torch: norms, rotations, queries, keys and values.

R rows, h hidden size, G key/value heads, J query heads that share one of them, D head dimension. RMSNorm(x) = weight *
sqrt(h) * x / |x|; weights are folded into the matrices that follow, see `cpu.layers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import TreeAttention
from swiftspec.engine.model.cpu.layers import Layer
from swiftspec.engine.model.rope import rotations
from swiftspec.models.spec import ModelSpec

__all__ = ["DraftLayers"]


class DraftLayers:
    """Decoder layers of a draft.

    shape: shape of the layers. dtype: matrices and cache have it; the residual stream is in fp32.
    """

    def __init__(self, shape: ModelSpec, *, dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        self._norm_floor = torch.tensor(math.sqrt(shape.hidden_size * shape.rms_norm_eps))
        self._head_norm_floor = torch.tensor(math.sqrt(shape.head_dim * shape.rms_norm_eps))
        self._turns = rotations(shape, 1)
        self._attentions: dict[int, TreeAttention] = {}

    def _unit(self, rows: Tensor) -> Tensor:
        """Rows of length one, but for the norm's epsilon."""
        norm: Tensor = torch.linalg.vector_norm(rows, 2, -1, True)
        return rows / norm.hypot_(self._norm_floor)

    def _norm_and_turn(self, heads: Tensor, weights: Tensor | None, positions: Sequence[int]) -> None:
        """Normalise heads [R, .., D], if there are weights of head norms, and rotate them, in place."""
        if weights is not None:
            norm = torch.linalg.vector_norm(heads, 2, -1, True)
            heads.div_(norm.hypot_(self._head_norm_floor)).mul_(weights)
        if len(self._turns) <= max(positions):
            self._turns = rotations(self._shape, 2 * (max(positions) + 1))
        pairs = torch.view_as_complex(heads.unflatten(-1, (self._shape.head_dim // 2, 2)))
        pairs.mul_(self._turns.index_select(0, torch.tensor(positions)))

    def _projected(self, layer: Layer, rows: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Queries [G, R, J, D] of rows at these positions, and their keys and values [2, G, R, D], in fp32."""
        shape = self._shape
        qkv = layer.qkv(rows.to(self._dtype)).float()
        heads = qkv.view(len(qkv), shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        self._norm_and_turn(heads[:, : shape.num_heads + shape.num_kv_heads], layer.qk_norm, positions)
        queries = heads[:, : shape.num_heads].unflatten(1, (shape.num_kv_heads, shape.group_size)).transpose(0, 1)
        return queries, heads[:, shape.num_heads :].unflatten(1, (2, shape.num_kv_heads)).permute(1, 2, 0, 3)

    def _attention(self, num_rows: int) -> TreeAttention:
        """Attention of so many rows; they see everything until it is prepared."""
        if num_rows not in self._attentions:
            self._attentions[num_rows] = TreeAttention(self._shape, num_rows=num_rows, dtype=self._dtype)
        return self._attentions[num_rows]
