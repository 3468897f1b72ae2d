"""Packs models for the CPU kernels: matrices in the order that they read, and the structs that point to them.

Matrices are packed in their own bytes if that is exact, or rounded.
"""

import ctypes
import math
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.rope import interleaved
from swiftspec.engine.model.weights.checkpoint import ROUTER, network_names
from swiftspec.engine.model.weights.loader import LoadedModel, SharedWeights
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.kernels.cpu_library import Adapter, Expert, Layer, Library, Matrix, Model
from swiftspec.models.spec import ModelSpec

_PANEL = 32  # as in formats.hpp
_CHUNK_BYTES = 32 << 20
_ALIGNMENT = 64  # a cache line


class _HugePages:
    """Hands out zeroed tensors, which keep their memory alive. In ordinary pages where the kernel has no huge ones."""

    def __init__(self) -> None:
        self._chunk = memoryview(b"")
        self._used = 0

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._used + num_bytes > len(self._chunk):
            self._chunk, self._used = _mapped(max(num_bytes, _CHUNK_BYTES)), 0
        start = self._used
        self._used = -(-(start + num_bytes) // _ALIGNMENT) * _ALIGNMENT
        return torch.frombuffer(self._chunk[start : start + num_bytes], dtype=dtype).view(*shape)


def _mapped(num_bytes: int) -> memoryview:
    area = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without them
        area.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(area)


class Format(IntEnum):
    """The numbers of formats.hpp. BFLOAT16_ROUNDED is stored as BFLOAT16; rows are rounded, too."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    INT8 = 3
    BFLOAT16_ROUNDED = 4

    @property
    def num_inputs(self) -> int:
        """Inputs of an output that are neighbours in a panel."""
        return {Format.BFLOAT16: 2, Format.BFLOAT16_ROUNDED: 2, Format.INT8: 4}.get(self, 1)


# The format of numbers of a dtype, multiplied in fp32.
_EXACT = {torch.float32: Format.FLOAT32, torch.bfloat16: Format.BFLOAT16, torch.float16: Format.FLOAT16}
_LARGEST_INT8, _OFFSET_INT8 = 127, 128


@dataclass(slots=True, kw_only=True)
class Packer:
    """Packs the weights of one or several models, and owns the result. Equal weights are packed once.

    dtype: float32: matrices are exact; bfloat16: rounded, and so are rows if this processor multiplies bfloat16; int8:
    rounded with a scale for each output, and rows with one for 128 inputs. num_bytes: of what was packed so far.
    """

    library: Library
    dtype: torch.dtype
    shared: SharedWeights
    num_bytes: int = 0
    _memory: _HugePages = field(default_factory=_HugePages)
    _kept: list[object] = field(default_factory=list)

    def vector(self, values: Tensor) -> int:
        """Address of its numbers in fp32."""
        return self.shared.once("vector", [values], lambda: self._held(values.float())).data_ptr()

    def plain(self, weight: Tensor) -> Tensor:
        """A matrix in the fewest bytes, in its own order."""
        return self.shared.once("plain", [weight], lambda: self._held(self._narrowest(weight)))

    @property
    def rounds_rows(self) -> bool:
        return self.dtype == torch.int8 or (self.dtype == torch.bfloat16 and self.library.has_bfloat16_products)

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> Matrix:
        """W [out, in], without an adapter."""
        made = self.shared.once("matrix", [weight, bias], lambda: self._packed(weight, bias, self.dtype))
        return Matrix.from_buffer_copy(made)

    def router(self, weight: Tensor) -> Matrix:
        """Weights [experts, in], which are never rounded: a row would be computed by other experts."""
        made = self.shared.once("router", [weight], lambda: self._packed(weight))
        return Matrix.from_buffer_copy(made)

    def adapter(self, down: Tensor, up: Tensor) -> int:
        """Address of an adapter, which is never rounded: down [rank, in], up [out, rank]."""
        made = Adapter(down=self._packed(down), up=self._packed(up))
        self._kept.append(made)
        return ctypes.addressof(made)

    def _held(self, values: Tensor) -> Tensor:
        values = values.contiguous()
        self.num_bytes += values.nbytes
        self._kept.append(values)
        return values

    def _packed(self, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Matrix:
        stored, scales, kind = self._stored(weight, dtype)
        panels = in_panels(F.pad(stored, (0, -stored.shape[1] % kind.num_inputs)))
        ordered = panels.unflatten(2, (-1, kind.num_inputs)).transpose(1, 2)
        held = self._held(self._memory.tensor(ordered.shape, ordered.dtype).copy_(ordered))
        matrix = Matrix(panels=held.data_ptr(), num_outputs=weight.shape[0], num_inputs=weight.shape[1], format=kind)
        if scales is not None:
            matrix.scales = self._held(scales.float()).data_ptr()
        if bias is not None:
            matrix.bias = self._held(bias.float()).data_ptr()
        return matrix

    def _stored(self, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Format]:
        """The numbers of a matrix as they are stored, their scales [out] if they have any, and their format."""
        if dtype == torch.int8:
            return *_quantised(weight), Format.INT8
        if dtype == torch.bfloat16:
            weight = weight.bfloat16()
            if self.library.has_bfloat16_products:
                return weight, None, Format.BFLOAT16_ROUNDED
        narrow = self._narrowest(weight)
        return narrow, None, _EXACT[narrow.dtype]

    def _narrowest(self, weight: Tensor) -> Tensor:
        """The same numbers in the fewest bytes that the kernels read."""
        candidates = [torch.float16] if self.library.has_float16 else []
        if weight.shape[-1] % 2 == 0:  # two inputs share a word
            candidates.insert(0, torch.bfloat16)
        if weight.dtype in candidates:
            return weight
        weight = weight.float()
        for dtype in candidates:
            narrow = weight.to(dtype)
            if torch.equal(narrow.float(), weight):
                return narrow
        return weight


def in_panels(weight: Tensor) -> Tensor:
    """The rows of a matrix, padded with zeros, in groups of 32: [panels, 32, in]."""
    padded: Tensor = F.pad(weight, (0, 0, 0, -weight.shape[0] % _PANEL))
    return padded.view(-1, _PANEL, weight.shape[1])


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded to int8, plus 128, and the scales [out] that undo it."""
    weight = weight.float()
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST_INT8
    return (weight / scales[:, None]).round().add(_OFFSET_INT8).to(torch.uint8), scales


_Arrange = Callable[[Sequence[Tensor]], Tensor]


class PackedModel:
    """A model for the kernels; its packer owns what it points to.

    model: without rotations. num_bytes: of weights that were not packed before. widest_adapter: the largest rank; or 0.
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
            model.embedding, model.embedding_format = embedding.data_ptr(), _EXACT[embedding.dtype]

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
