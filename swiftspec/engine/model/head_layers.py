"""A head's forward with torch: the target's features or its own hidden states in, hidden states and logits out.

R rows, h hidden size, D head dimension, V vocabulary. RMSNorm(x) = weight * sqrt(h) * x / |x|; weights are folded into
the matrices that follow, see `cpu_layers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.attention import TreeAttention, Visibility
from swiftspec.engine.model.cpu_layers import build_head, build_layer
from swiftspec.engine.model.head_weights import LAYER
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.packed_linear import Linear
from swiftspec.engine.model.rope import rotations
from swiftspec.engine.model.weight_sharding import EMBEDDING, HEAD
from swiftspec.models.head_spec import HeadFormat, HeadSpec

__all__ = ["HeadLayers", "HeadRows"]


class HeadRows(NamedTuple):
    """Rows of one sequence, and the cache that their keys and values join.

    visible: what each row sees of the slots after the prefix, these rows included.
    """

    num_rows: int
    cache: KVCache
    visible: Visibility


class HeadLayers:
    """The decoder layer of a head, with what comes before and after it.

    Parameters
    ----------
    spec : HeadSpec
    weights : mapping
        As of `load_head_weights`.
    dtype : torch.dtype
        Of matrices and cache; the residual stream is in fp32.

    Attributes
    ----------
    tokens : Tensor or None
        The target's token for each that it can propose, if those are not all.
    """

    def __init__(self, spec: HeadSpec, weights: Mapping[str, Tensor], *, dtype: torch.dtype) -> None:
        self.spec, self._layer_spec, self._dtype = spec, spec.layer, dtype
        size = spec.layer.hidden_size
        self._is_mtp = spec.format is HeadFormat.MTP
        self._norm_floor = torch.tensor(math.sqrt(size * spec.layer.rms_norm_eps))
        self._head_norm_floor = torch.tensor(math.sqrt(spec.layer.head_dim * spec.layer.rms_norm_eps))
        self._embedding = weights[EMBEDDING].to(dtype)
        norms = torch.cat([weights["embedding_norm.weight"], weights["hidden_norm.weight"]]).float()
        fusion = weights["fc.weight"].float()
        layer = dict(weights)
        if self._is_mtp:
            fusion = fusion * (norms * math.sqrt(size))
            self._feature_norm = weights["feature_norm.weight"].float() * math.sqrt(size)
        else:
            # `build_layer` takes the norm of 2 h numbers, of which each half is of length one here.
            layer[LAYER + "input_layernorm.weight"] = norms / math.sqrt(2)
            self._residual_norm = weights["hidden_norm.weight"].float() * math.sqrt(size)
        self._fusion = Linear(fusion, None, dtype=dtype)
        self._layer = build_layer(layer, 0, spec.layer, dtype=dtype)
        untied = {HEAD: weights[HEAD], "model.norm.weight": weights["model.norm.weight"]}
        self._head = build_head(untied, spec.untied_layer, dtype=dtype)
        self.tokens = weights.get("tokens")
        carried = weights.get("carried_norm.weight")
        self._carried_norm = None if carried is None else carried.float() * math.sqrt(size)
        self._turns = rotations(spec.layer, 1)
        self._attentions: dict[int, TreeAttention] = {}

    def fused(self, features: Tensor) -> Tensor:
        """What takes the place of hidden states where the target's features are known, [R, h] in fp32."""
        if self._is_mtp:
            return self._unit(features) * self._feature_norm
        return self._fusion(features.to(self._dtype)).float()

    def forward(
        self, tokens: Sequence[int], positions: Sequence[int], hidden: Tensor, parts: Sequence[HeadRows]
    ) -> Tensor:
        """Hidden states [R, h] of rows, part after part, whose keys and values are written to their caches.

        hidden: what precedes each row, [R, h].
        """
        embedded = self._unit(self._embedding.index_select(0, torch.tensor(tokens)).float())
        if self._is_mtp:
            residual = self._fusion(torch.cat([embedded, self._unit(hidden)], 1).to(self._dtype)).float()
            inputs = self._unit(residual)
        else:
            unit = self._unit(hidden)
            residual = unit * self._residual_norm if self.spec.norm_before_residual else hidden
            inputs = torch.cat([embedded, unit], 1)
        residual = residual + self._attended(inputs, positions, parts)
        gate, up = self._layer.gate_up(self._unit(residual).to(self._dtype)).chunk(2, -1)
        return residual + self._layer.down(F.silu(gate).mul_(up))

    def carried(self, hidden: Tensor) -> Tensor:
        """Hidden states as the next rows read them."""
        return hidden if self._carried_norm is None else self._unit(hidden) * self._carried_norm

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in fp32 of the tokens that it can propose, [R, draft vocabulary]."""
        return self._head(self._unit(hidden).to(self._dtype)).float()

    def spread(self, logits: Tensor) -> Tensor:
        """The same over the target's vocabulary, [R, V]: tokens that it cannot propose have -inf."""
        if self.tokens is None:
            return logits
        spread = logits.new_full((len(logits), self._layer_spec.vocab_size), -math.inf)
        return spread.index_copy_(1, self.tokens, logits)

    def _attended(self, inputs: Tensor, positions: Sequence[int], parts: Sequence[HeadRows]) -> Tensor:
        spec = self._layer_spec
        qkv = self._layer.qkv(inputs.to(self._dtype)).float()
        heads = qkv.view(len(qkv), spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        turning = heads[:, : spec.num_heads + spec.num_kv_heads]
        if self._layer.qk_norm is not None:
            norm = torch.linalg.vector_norm(turning, 2, -1, True)
            turning.div_(norm.hypot_(self._head_norm_floor)).mul_(self._layer.qk_norm)
        torch.view_as_complex(turning.unflatten(-1, (spec.head_dim // 2, 2))).mul_(self._turns_at(positions))
        queries = heads[:, : spec.num_heads].unflatten(1, (spec.num_kv_heads, spec.group_size)).transpose(0, 1)
        keys_values = heads[:, spec.num_heads :].unflatten(1, (2, spec.num_kv_heads)).permute(1, 2, 0, 3)
        outputs, end = [], 0
        for part in parts:
            first, end = end, end + part.num_rows
            outputs.append(self._attention(part, queries[:, first:end], keys_values[:, :, first:end]))
        return self._layer.output(outputs[0] if len(outputs) == 1 else torch.cat(outputs)).float()

    def _attention(self, part: HeadRows, queries: Tensor, new: Tensor) -> Tensor:
        cache, num_rows = part.cache, part.num_rows
        attention = self._attentions.get(num_rows)
        if attention is None:
            attention = TreeAttention(self._layer_spec, num_rows=num_rows, dtype=self._dtype)
            self._attentions[num_rows] = attention
        num_slots = attention.prepare(part.visible, prefix_length=cache.prefix_length)
        attention.queries_GRJD.copy_(queries)
        data = cache.data[0]
        data[:, :, num_slots - num_rows : num_slots].copy_(new)
        keys, values = data[:, None, :, :num_slots].unbind(0)
        return attention(keys, values)

    def _unit(self, rows: Tensor) -> Tensor:
        """Rows of length one, but for the norm's epsilon."""
        norm: Tensor = torch.linalg.vector_norm(rows, 2, -1, True)
        return rows / norm.hypot_(self._norm_floor)

    def _turns_at(self, positions: Sequence[int]) -> Tensor:
        if len(self._turns) <= max(positions):
            self._turns = rotations(self._layer_spec, 2 * (max(positions) + 1))
        return self._turns.index_select(0, torch.tensor(positions))
