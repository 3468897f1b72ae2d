"""A head's forward with torch: the target's features or its own hidden states in, hidden states and logits out.

R rows, h hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import SequenceInput
from swiftspec.engine.model.cpu.layers import Linear, build_head, build_layer
from swiftspec.engine.model.cpu.with_torch import DecoderLayers, rows_with_logits
from swiftspec.engine.model.drafts.head_weights import LAYER
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.models.drafters import Drafter
from swiftspec.models.head_spec import HeadSpec

__all__ = ["HeadLayers"]


class HeadLayers(DecoderLayers):
    """The decoder layer of a head, with what comes before and after it.

    weights: from `load_head_weights`. dtype: matrices and cache have it; the residual stream is in fp32.

    tokens: the target's token for each that it can propose, if those are not all.
    """

    has_own_threads = False
    key_block = 1

    def __init__(self, spec: HeadSpec, weights: Mapping[str, Tensor], *, dtype: torch.dtype) -> None:
        super().__init__(spec.layer, dtype=dtype)
        self.spec, size = spec, spec.layer.hidden_size
        self._is_mtp = spec.format is Drafter.MTP
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

    def fused(self, features: Tensor) -> Tensor:
        """What takes the place of hidden states where the target's features are known, [R, h] in fp32."""
        if self._is_mtp:
            return self._unit(features) * self._feature_norm
        return self._fusion(features.to(self._dtype)).float()

    def forward(self, inputs: Sequence[SequenceInput], hidden: Tensor) -> Tensor:
        """Hidden states [R, h] of the rows of all inputs, whose keys and values are written to their caches.

        hidden: what precedes each row, [R, h].
        """
        tokens = [token for sequence in inputs for token in sequence.tokens]
        positions = [position for sequence in inputs for position in sequence.positions]
        embedded = self._unit(self._embedding.index_select(0, torch.tensor(tokens)).float())
        if self._is_mtp:
            residual = self._fusion(torch.cat([embedded, self._unit(hidden)], 1).to(self._dtype)).float()
            rows = self._unit(residual)
        else:
            unit = self._unit(hidden)
            residual = unit * self._residual_norm if self.spec.norm_before_residual else hidden
            rows = torch.cat([embedded, unit], 1)
        parts = self._parts(inputs)
        residual = residual + self._attended(self._layer, rows, self._turns(positions), parts).float()
        return residual + self._layer.feed(self._unit(residual).to(self._dtype))

    def carried(self, hidden: Tensor) -> Tensor:
        """Hidden states as the next rows read them."""
        return hidden if self._carried_norm is None else self._unit(hidden) * self._carried_norm

    def logits(self, inputs: Sequence[SequenceInput], hidden: Tensor) -> Tensor:
        """Logits in fp32 of the tokens that it can propose, [rows that are to have them, draft vocabulary]."""
        if any(sequence.ancestors is None for sequence in inputs):
            hidden = hidden.index_select(0, torch.tensor(rows_with_logits(inputs)))
        return self._head(self._unit(hidden).to(self._dtype)).float()
