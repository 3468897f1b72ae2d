"""Packs weights for the CPU kernels: in their own bytes where that is exact, in the order that the kernels read."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.huge_pages import HugePages
from swiftspec.engine.model.rope import interleaved, rotations
from swiftspec.engine.model.weight_sharding import EMBEDDING, HEAD
from swiftspec.kernels.cpu_library import Layer, Library, Matrix, Model
from swiftspec.models.spec import ModelSpec

__all__ = ["PackedModel"]

_PANEL = 32  # as in linear.hpp


class _Format(IntEnum):
    """The numbers of linear.hpp."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    INT8 = 3


_FORMATS = {
    torch.float32: _Format.FLOAT32,
    torch.bfloat16: _Format.BFLOAT16,
    torch.float16: _Format.FLOAT16,
    torch.int8: _Format.INT8,
}
_LARGEST_INT8 = 127


@dataclass(slots=True, kw_only=True)
class PackedModel:
    """A model for the kernels, and the tensors that it points to.

    quantised: matrices in int8 with a scale for each output, which changes the logits; else they are exact.
    """

    library: Library
    spec: ModelSpec
    quantised: bool
    model: Model = field(default_factory=Model)
    _memory: HugePages = field(default_factory=HugePages)
    _kept: list[object] = field(default_factory=list)
    _turns: Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def pack(
        cls, weights: Mapping[str, Tensor], spec: ModelSpec, library: Library, *, quantised: bool = False
    ) -> PackedModel:
        """All weights of a checkpoint, or of a shard of it; `spec` is the shard's."""
        packed = cls(library=library, spec=spec, quantised=quantised)
        packed._fill(weights)
        return packed

    def hold_turns(self, num_positions: int) -> None:
        """Rotations for positions below `num_positions`, at least."""
        if self._turns.shape[0] < num_positions:
            self._turns = torch.view_as_real(rotations(self.spec, num_positions).squeeze(1)).contiguous()
            self.model.turns, self.model.num_positions = self._turns.data_ptr(), num_positions

    def _fill(self, weights: Mapping[str, Tensor]) -> None:
        spec, model = self.spec, self.model
        model.hidden_size, model.intermediate_size = spec.hidden_size, spec.intermediate_size
        model.num_heads, model.num_kv_heads, model.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        model.norm_eps, model.vocab_size = spec.rms_norm_eps, len(weights[EMBEDDING])
        model.final_norm = self._vector(weights["model.norm.weight"])
        layers = (Layer * spec.num_layers)()
        for index, layer in enumerate(layers):
            self._fill_layer(layer, weights, index)
        self._kept.append(layers)
        model.layers = ctypes.cast(layers, type(model.layers))
        tied = spec.tie_word_embeddings
        model.head = self._matrix(weights[EMBEDDING if tied else HEAD], None)
        model.embedding_format = model.head.format
        if not tied or self.quantised:  # else the head's panels serve both
            embedding = self._narrowest(weights[EMBEDDING]).contiguous()
            self._kept.append(embedding)
            model.embedding, model.embedding_format = embedding.data_ptr(), _FORMATS[embedding.dtype]

    def _fill_layer(self, layer: Layer, weights: Mapping[str, Tensor], index: int) -> None:
        spec = self.spec

        def get(name: str) -> Tensor:
            return weights[f"model.layers.{index}.{name}"]

        def head_rows(name: str, part: str) -> Tensor:
            rows = get(f"self_attn.{name}_proj.{part}")
            return rows if name == "v" else interleaved(rows, spec.head_dim)

        layer.attention_norm = self._vector(get("input_layernorm.weight"))
        layer.feed_forward_norm = self._vector(get("post_attention_layernorm.weight"))
        if spec.qk_norm:
            layer.query_norm = self._vector(interleaved(get("self_attn.q_norm.weight"), spec.head_dim))
            layer.key_norm = self._vector(interleaved(get("self_attn.k_norm.weight"), spec.head_dim))
        qkv_bias = torch.cat([head_rows(name, "bias") for name in "qkv"]) if spec.qkv_bias else None
        layer.qkv = self._matrix(torch.cat([head_rows(name, "weight") for name in "qkv"]), qkv_bias)
        output_bias = get("self_attn.o_proj.bias") if spec.output_bias else None
        layer.output = self._matrix(get("self_attn.o_proj.weight"), output_bias)
        gate, up = (_padded(get(f"mlp.{name}_proj.weight")).unflatten(0, (-1, _PANEL)) for name in ("gate", "up"))
        layer.gate_up = self._matrix(torch.stack([gate, up], 1).flatten(0, 2), None)
        layer.down = self._matrix(get("mlp.down_proj.weight"), None)

    def _vector(self, values: Tensor) -> int:
        kept = values.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def _matrix(self, weight: Tensor, bias: Tensor | None) -> Matrix:
        """W [out, in]."""
        stored, scales = _quantised(weight) if self.quantised else (self._narrowest(weight), None)
        ordered = _padded(stored).unflatten(0, (-1, _PANEL)).transpose(1, 2)[..., self._order(stored.dtype)]
        panels = self._memory.tensor(ordered.shape, ordered.dtype).copy_(ordered)
        self._kept.append(panels)
        matrix = Matrix(panels=panels.data_ptr(), num_outputs=weight.shape[0], num_inputs=weight.shape[1])
        matrix.format = _FORMATS[stored.dtype]
        if scales is not None:
            matrix.scales = self._vector(scales)
        if bias is not None:
            matrix.bias = self._vector(bias)
        return matrix

    def _narrowest(self, weight: Tensor) -> Tensor:
        """The same numbers in the fewest bytes that the kernels read."""
        candidates = [torch.bfloat16, *([torch.float16] if self.library.has_float16 else [])]
        if weight.dtype in candidates:
            return weight
        weight = weight.float()
        for dtype in candidates:
            narrow = weight.to(dtype)
            if torch.equal(narrow.float(), weight):
                return narrow
        return weight

    def _order(self, dtype: torch.dtype) -> Tensor:
        """Output of each place of a panel. Two vectors of bfloat16 share their words, low and high halves."""
        order = torch.arange(_PANEL)
        if dtype != torch.bfloat16:
            return order
        return order.view(-1, 2, self.library.lanes).transpose(1, 2).flatten()


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded to int8, and the scales [out] that undo it."""
    weight = weight.float()
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST_INT8
    return (weight / scales[:, None]).round().to(torch.int8), scales


def _padded(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, 0, 0, -weight.shape[0] % _PANEL))
