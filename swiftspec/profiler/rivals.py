"""The engine's operations beside torch's and beside fp64, at the shapes of well-known models; a whole forward.

Records are plain values, one per measurement: seconds are medians, `error` is |out - exact| / |exact|.
R rows, N x K a weight, H query heads, G key/value heads, J = H / G, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.checkpoint import weight_shapes
from swiftspec.engine.ops import ops_for
from swiftspec.engine.static import StaticDecoder
from swiftspec.engine.weights import FORMATS, read_bytes
from swiftspec.profiler.stopwatch import Stopwatch, Timing
from swiftspec.specs import ModelSpec, model_directory

__all__ = ["PRODUCTS", "QUICK_PRODUCTS", "forward_record", "kernel_records", "shape_32b"]

Record = dict[str, Any]

# (N, K) of one device's shard; gate_up: all gate rows, then all up rows.
PRODUCTS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "8B": {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)},
    "70B on 4": {"qkv": (2560, 8192), "output": (8192, 2048), "gate_up": (14336, 8192), "down": (8192, 7168)},
}
QUICK_PRODUCTS: Mapping[str, Mapping[str, tuple[int, int]]] = {"tiny": {"qkv": (96, 64), "gate_up": (128, 64)}}
_ROWS = 8
_CONTEXTS = (500, 1000, 4000)
_HEADS = (32, 8, 128)  # H, G, D of an 8B model
_WIDE_MASK = 64  # tree slots of a mask


def kernel_records(watch: Stopwatch, *, quick: bool) -> Iterator[Record]:
    """The copy that percentages are of, then products, gated products and tree attention of 8 rows, in bf16."""
    copy = _copy(watch)
    yield copy
    for model, shapes in (QUICK_PRODUCTS if quick else PRODUCTS).items():
        for name, (n, k) in shapes.items():
            yield _product(watch, f"{model} {name}", n, k, gated=name == "gate_up", peak=copy["bytes_per_s"])
    for context in (32,) if quick else _CONTEXTS:
        yield _attention(watch, context, (4, 2, 16) if quick else _HEADS, peak=copy["bytes_per_s"])


def forward_record(watch: Stopwatch, *, spec: ModelSpec, dtype: str, context: int) -> Record:
    """A target's forward of 8 rows behind a prefix, from rows on the host to logits on the device."""
    weight_format = FORMATS[dtype]
    weights = _RandomWeights(spec, device=watch.device, dtype=weight_format.dtype)
    decoder = StaticDecoder(spec, weights, weight_format=weight_format, device=watch.device)
    cache = decoder.new_cache(context + _WIDE_MASK)
    decoder.prefill([1] * context, cache)
    ancestors = [(1 << row) - 1 for row in range(_ROWS)]

    def forward() -> None:
        decoder.forward([1] * _ROWS, range(context, context + _ROWS), ancestors, cache)
        cache.tree_length = 0  # a move that would be timed, too, is not part of a forward

    peak = _copy(watch)["bytes_per_s"]
    timing = watch.eager(forward)
    return _record("forward", f"{dtype}, {spec.num_layers} layers", timing, read_bytes(spec, weight_format), peak)


def shape_32b(*, quick: bool) -> ModelSpec:
    """The shape of a dense 32B model; `quick`: next to nothing."""
    spec = ModelSpec.from_directory(model_directory("demo/target"))
    if quick:
        return replace(spec, num_layers=2)
    return replace(
        spec,
        hidden_size=5120,
        intermediate_size=25600,
        num_layers=64,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position=4096,
        tie_word_embeddings=False,
    )


class _RandomWeights(Mapping[str, Tensor]):
    """Weights made on the device when they are asked for: they fit once, and no host copies them there for minutes."""

    def __init__(self, spec: ModelSpec, *, device: torch.device, dtype: torch.dtype) -> None:
        self._shapes = weight_shapes(spec)
        self._dtype = dtype
        self._generator = torch.Generator(device).manual_seed(0)

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        device = self._generator.device
        weight = torch.randn(shape, generator=self._generator, device=device, dtype=self._dtype)
        return weight.abs_() if len(shape) == 1 else weight.div_(math.sqrt(shape[-1]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _copy(watch: Stopwatch) -> Record:
    source = torch.ones(2 * watch.cached_bytes, device=watch.device)  # fp32: eight times the cache
    target = torch.empty_like(source)
    timing = watch.eager(target.copy_, [(source,)])
    num_bytes = 2 * source.numel() * 4
    return _record("copy", f"{num_bytes // 2} bytes", timing, num_bytes, num_bytes / timing.median_s)


def _product(watch: Stopwatch, shape: str, n: int, k: int, *, gated: bool, peak: float) -> Record:
    """Beside torch's product, and a SiLU and a multiplication of its own where gated."""
    weight = _randn(watch, n, k) / math.sqrt(k)
    x = _randn(watch, _ROWS, k)
    arguments = [(x, weight.clone()) for _ in range(watch.copies(n * k * 2))]
    ops = ops_for(watch.device)
    call, rival = (ops.gate_up, _gate_then_silu) if gated else (ops.linear, F.linear)
    exact = F.linear(x.double(), weight.double())
    if gated:
        gate, up = exact.chunk(2, -1)
        exact = F.silu(gate) * up
    timing, rival_timing = watch.graphed(call, arguments), watch.graphed(rival, arguments)
    measured = _record("gate_up" if gated else "product", shape, timing, n * k * 2, peak)
    return measured | {"rival_s": rival_timing.median_s, "error": _error(call(x, weight), exact)}


def _gate_then_silu(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


def _attention(watch: Stopwatch, context: int, heads: tuple[int, int, int], *, peak: float) -> Record:
    """A chain of 8 rows behind a prefix, beside torch's with a mask: heads that share keys stacked as rows."""
    num_heads, num_groups, size = heads
    num_slots = context + _ROWS
    q_RHD = _randn(watch, _ROWS, num_heads, size)
    keys, values = _randn(watch, 2, num_groups, context + _WIDE_MASK, size)
    num_bytes = 2 * num_groups * num_slots * size * 2
    arguments = [(q_RHD, keys.clone(), values.clone()) for _ in range(watch.copies(num_bytes))]
    rows = torch.arange(_ROWS, device=watch.device)
    words = torch.zeros(_ROWS, _WIDE_MASK // 32, dtype=torch.int32, device=watch.device)
    words[:, 0] = ((2 << rows) - 1).int()
    ops = ops_for(watch.device)
    call = partial(
        ops.tree_attention,
        ancestors_RW=words,
        lengths_2=torch.tensor([context, 0], dtype=torch.int32, device=watch.device),
        scale=size**-0.5,
        workspace=ops.tree_attention_workspace(_ROWS, num_heads, keys),
    )
    visible = torch.ones(_ROWS, num_slots, dtype=torch.bool, device=watch.device).tril(context)
    rival = partial(_masked_attention, visible=visible.repeat(num_heads // num_groups, 1))
    exact = rival(q_RHD.double(), keys.double(), values.double())
    timing, rival_timing = watch.graphed(call, arguments), watch.graphed(rival, arguments)
    measured = _record("attention", f"context {context}", timing, num_bytes, peak)
    return measured | {"rival_s": rival_timing.median_s, "error": _error(call(q_RHD, keys, values), exact)}


def _masked_attention(q_RHD: Tensor, keys: Tensor, values: Tensor, *, visible: Tensor) -> Tensor:
    num_rows, num_heads, size = q_RHD.shape
    num_groups, num_slots = keys.shape[0], visible.shape[1]
    stacked = q_RHD.transpose(0, 1).reshape(1, num_groups, -1, size)
    used = keys[None, :, :num_slots], values[None, :, :num_slots]
    mixed = F.scaled_dot_product_attention(stacked, *used, attn_mask=visible)
    return mixed.reshape(num_heads, num_rows, size).transpose(0, 1)


def _randn(watch: Stopwatch, *shape: int) -> Tensor:
    generator = torch.Generator(watch.device).manual_seed(len(shape))
    return torch.randn(shape, generator=generator, device=watch.device).bfloat16()


def _error(out: Tensor, exact: Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


def _record(kind: str, shape: str, timing: Timing, num_bytes: int, peak: float) -> Record:
    bytes_per_s = num_bytes / timing.median_s
    return {
        "kind": kind,
        "shape": shape,
        "median_s": timing.median_s,
        "low_s": timing.low_s,
        "high_s": timing.high_s,
        "bytes_per_s": bytes_per_s,
        "of_copy": bytes_per_s / peak,
    }
