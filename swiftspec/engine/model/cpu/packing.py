"""Packs models for the CPU kernels: their weights, and the structs that point to them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.packer import Format, Packer, in_panels
from swiftspec.engine.model.rope import interleaved
from swiftspec.engine.model.weights.checkpoint import ROUTER, network_names
from swiftspec.engine.model.weights.loader import LoadedModel
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.kernels.cpu_library import Expert, Layer, Matrix, Model
from swiftspec.models.spec import ModelSpec

__all__ = ["PackedModel"]

_Arrange = Callable[[Sequence[Tensor]], Tensor]


class PackedModel:
    """A model for the kernels; its packer owns what it points to.

    model: what the kernels read; without rotations. num_bytes: memory that its weights take in addition to those that
    were packed before. widest_adapter: the largest rank of an adapter; 0 if it has none.
    """

    def __init__(self, loaded: LoadedModel, spec: ModelSpec, packer: Packer) -> None:
        self.model = Model()
        self.widest_adapter = 0
        self._weights, self._adapters = loaded
        self._spec = spec
        self._packer = packer
        before = packer.num_bytes
        self._layers = (Layer * spec.num_layers)()  # which the model points to
        self._experts: list[ctypes.Array[Expert]] = []  # to which the layers point
        self._fill()
        self.num_bytes = packer.num_bytes - before
        del self._weights, self._adapters

    def _fill(self) -> None:
        spec, model, weights, packer = self._spec, self.model, self._weights, self._packer
        model.hidden_size, model.intermediate_size = spec.hidden_size, spec.intermediate_size
        model.num_heads, model.num_kv_heads, model.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        model.norm_eps, model.vocab_size = spec.rms_norm_eps, len(weights[EMBEDDING])
        model.final_norm = packer.vector(weights["model.norm.weight"])
        if spec.experts is not None:
            model.num_experts, model.num_active = spec.experts.num_experts, spec.experts.num_active
            model.is_normalised = spec.experts.is_normalised
        for index, layer in enumerate(self._layers):
            self._fill_layer(layer, index)
        model.layers = ctypes.cast(self._layers, type(model.layers))
        tied = spec.tie_word_embeddings
        model.head = packer.matrix(weights[EMBEDDING if tied else HEAD])
        model.embedding_format = model.head.format
        if not tied or packer.dtype == torch.int8:  # else the head's panels serve both
            embedding = packer.plain(weights[EMBEDDING])
            model.embedding, model.embedding_format = embedding.data_ptr(), Format.exact(embedding.dtype)

    def _fill_layer(self, layer: Layer, index: int) -> None:
        spec, packer = self._spec, self._packer

        def get(name: str) -> Tensor:
            return self._weights[f"model.layers.{index}.{name}"]

        def product(names: Sequence[str], arrange: _Arrange, bias: Tensor | None = None) -> Matrix:
            return self._product([f"model.layers.{index}.{name}_proj.weight" for name in names], arrange, bias)

        def qkv(parts: Sequence[Tensor]) -> Tensor:
            query, key, value = parts
            return torch.cat([interleaved(query, spec.head_dim), interleaved(key, spec.head_dim), value])

        layer.attention_norm = packer.vector(get("input_layernorm.weight"))
        layer.feed_forward_norm = packer.vector(get("post_attention_layernorm.weight"))
        if spec.qk_norm:
            layer.query_norm = packer.vector(interleaved(get("self_attn.q_norm.weight"), spec.head_dim))
            layer.key_norm = packer.vector(interleaved(get("self_attn.k_norm.weight"), spec.head_dim))
        bias = qkv([get(f"self_attn.{name}_proj.bias") for name in "qkv"]) if spec.qkv_bias else None
        layer.qkv = product([f"self_attn.{name}" for name in "qkv"], qkv, bias)
        output_bias = get("self_attn.o_proj.bias") if spec.output_bias else None
        layer.output = product(["self_attn.o"], _only, output_bias)
        networks = [
            Expert(gate_up=product([f"{name}.gate", f"{name}.up"], _in_turns), down=product([f"{name}.down"], _only))
            for name in network_names(spec)
        ]
        if spec.experts is None:
            layer.gate_up, layer.down = networks[0].gate_up, networks[0].down
            return
        layer.router = packer.router(get(ROUTER))
        self._experts.append((Expert * len(networks))(*networks))
        layer.experts = ctypes.cast(self._experts[-1], type(layer.experts))

    def _product(self, names: Sequence[str], arrange: _Arrange, bias: Tensor | None) -> Matrix:
        """Weights with common inputs as one matrix, and the adapters of some of them as one."""
        weights = [self._weights[name] for name in names]
        matrix = self._packer.matrix(arrange(weights), bias)
        adapters = [self._adapters.get(name) for name in names]
        downs = [each.down for each in adapters if each is not None]
        if not downs:
            return matrix
        rank, start, ups = sum(map(len, downs)), 0, []
        for weight, each in zip(weights, adapters, strict=True):
            up = torch.zeros(len(weight), rank)
            if each is not None:  # it reads its own part of what the common first product gives
                up[:, start : start + len(each.down)] = each.up
                start += len(each.down)
            ups.append(up)
        matrix.adapter = self._packer.adapter(torch.cat(downs), arrange(ups))
        self.widest_adapter = max(self.widest_adapter, rank)
        return matrix


def _only(parts: Sequence[Tensor]) -> Tensor:
    (part,) = parts
    return part


def _in_turns(parts: Sequence[Tensor]) -> Tensor:
    """Panels of gates and of their ups take turns."""
    return torch.stack([in_panels(part) for part in parts], 1).flatten(0, 2)
