"""The engine's operations compared with torch's and with fp64, at the shapes of well-known models.

Records are plain values, one per measurement: seconds are medians, `error` is |out - exact| / |exact|.
R rows, N x K a weight, H query heads, G key/value heads, J = H / G, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.gpu.ops import ops_for, reference_ops, triton_ops
from swiftspec.profiler.op_benchmark import chain_words
from swiftspec.profiler.op_timer import OpTimer, Timing

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
_MATRIX = {"cpu": 256, "cuda": 8192}
_LAUNCHES = 200


def kernel_records(watch: OpTimer, *, quick: bool) -> Iterator[Record]:
    """The copy that percentages refer to, then products, gated products and tree attention of 8 rows, in bf16."""
    copy = copy_record(watch)
    yield copy
    for model, shapes in (QUICK_PRODUCTS if quick else PRODUCTS).items():
        for name, (n, k) in shapes.items():
            yield _product(watch, f"{model} {name}", n, k, gated=name == "gate_up", peak=copy["bytes_per_s"])
    for context in (32,) if quick else _CONTEXTS:
        yield _attention(watch, context, (4, 2, 16) if quick else _HEADS, peak=copy["bytes_per_s"])


def limit_records(watch: OpTimer) -> Iterator[Record]:
    """The device's limits: a copy, a sum that only reads, a large product, a launch in a graph."""
    copy = copy_record(watch)
    yield copy
    source = torch.ones(2 * watch.cached_bytes, device=watch.device)
    timing, num_bytes = watch.graphed(torch.sum, [(source,)], in_a_row=1), source.numel() * 4
    yield bandwidth_record("read", f"{num_bytes} bytes", timing, num_bytes, copy["bytes_per_s"])
    size = _MATRIX[watch.device.type]
    left, right = _randn(watch, size, size), _randn(watch, size, size)
    timing = watch.graphed(torch.mm, [(left, right)], in_a_row=1)
    shape = f"{size} x {size} x {size}"
    yield _times("matrix product", shape, timing) | {"flops_per_s": 2 * size**3 / timing.median_s}
    residual, weight = torch.randn(1, 128, device=watch.device), torch.ones(128, device=watch.device)
    for pdl in (False, True) if watch.device.type == "cuda" else (False,):
        ops = triton_ops(pdl=pdl) if watch.device.type == "cuda" else reference_ops()
        norm = partial(ops.rms_norm, residual, None, weight, eps=1e-5)
        yield _times("launch", "a norm of one row in a graph", watch.graphed(norm, in_a_row=_LAUNCHES)) | {"pdl": pdl}


def attention_records(watch: OpTimer, *, quick: bool) -> Iterator[Record]:
    """Tree attention by context, rows and splits; the first of each is the engine's choice."""
    contexts, row_counts = ((32,), (1,)) if quick else ((500, 1000, 4000), (1, 8, 32))
    heads = (4, 2, 16) if quick else _HEADS
    for context in contexts:
        for num_rows in row_counts:
            for num_splits in (None, 2) if quick else (None, 4, 8, 16, 32):
                timing = _time_attention(watch, context, heads, num_rows, num_splits)
                shape = f"context {context}, {num_rows} rows"
                yield _times("attention splits", shape, timing) | {"way": f"{num_splits or 'default'} splits"}


def copy_record(watch: OpTimer) -> Record:
    """A copy of eight times the cache size."""
    source = torch.ones(2 * watch.cached_bytes, device=watch.device)  # fp32: eight times the cache
    target = torch.empty_like(source)
    timing = watch.graphed(target.copy_, [(source,)], in_a_row=1)
    num_bytes = 2 * source.numel() * 4
    return bandwidth_record("copy", f"{num_bytes // 2} bytes", timing, num_bytes, num_bytes / timing.median_s)


def _product(watch: OpTimer, shape: str, n: int, k: int, *, gated: bool, peak: float) -> Record:
    """A product, compared with torch's (if gated, with a separate SiLU and multiplication)."""
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
    measured = bandwidth_record("gate_up" if gated else "product", shape, timing, n * k * 2, peak)
    return measured | {"rival_s": rival_timing.median_s, "error": _error(call(x, weight), exact)}


def _gate_then_silu(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


def _attention(watch: OpTimer, context: int, heads: tuple[int, int, int], *, peak: float) -> Record:
    """A chain of 8 rows after a prefix, compared with torch's with a mask; heads that share keys stacked as rows."""
    num_heads, num_groups, size = heads
    num_slots = context + _ROWS
    q_RHD = _randn(watch, _ROWS, num_heads, size)
    keys, values = _randn(watch, 2, num_groups, context + _WIDE_MASK, size)
    num_bytes = 2 * num_groups * num_slots * size * 2
    arguments = [(q_RHD, keys.clone(), values.clone()) for _ in range(watch.copies(num_bytes))]
    ops = ops_for(watch.device)
    call = partial(
        ops.tree_attention,
        ancestors_RW=chain_words(_ROWS).to(watch.device),
        lengths_2=torch.tensor([context, 0], dtype=torch.int32, device=watch.device),
        scale=size**-0.5,
        workspace=ops.tree_attention_workspace(_ROWS, num_heads, keys),
    )
    visible = torch.ones(_ROWS, num_slots, dtype=torch.bool, device=watch.device).tril(context)
    rival = partial(_masked_attention, visible=visible.repeat(num_heads // num_groups, 1))
    exact = rival(q_RHD.double(), keys.double(), values.double())
    timing, rival_timing = watch.graphed(call, arguments), watch.graphed(rival, arguments)
    measured = bandwidth_record("attention", f"context {context}", timing, num_bytes, peak)
    return measured | {"rival_s": rival_timing.median_s, "error": _error(call(q_RHD, keys, values), exact)}


def _time_attention(
    watch: OpTimer, context: int, heads: tuple[int, int, int], num_rows: int, num_splits: int | None
) -> Timing:
    num_heads, num_groups, size = heads
    # Without a GPU the kernel is interpreted: plain torch has no splits.
    from swiftspec.kernels.tree_attention import tree_attention, tree_attention_workspace

    q_RHD = _randn(watch, num_rows, num_heads, size)
    keys, values = _randn(watch, 2, num_groups, context + _WIDE_MASK, size)
    copies = watch.copies(2 * num_groups * (context + num_rows) * size * 2)
    call = partial(
        tree_attention,
        ancestors_RW=chain_words(num_rows).to(watch.device),
        lengths_2=torch.tensor([context, 0], dtype=torch.int32, device=watch.device),
        scale=size**-0.5,
        workspace=tree_attention_workspace(num_rows, num_heads, keys, num_splits=num_splits),
        num_splits=num_splits,
    )
    return watch.graphed(call, [(q_RHD, keys.clone(), values.clone()) for _ in range(copies)])


def _masked_attention(q_RHD: Tensor, keys: Tensor, values: Tensor, *, visible: Tensor) -> Tensor:
    num_rows, num_heads, size = q_RHD.shape
    num_groups, num_slots = keys.shape[0], visible.shape[1]
    stacked = q_RHD.transpose(0, 1).reshape(1, num_groups, -1, size)
    used = keys[None, :, :num_slots], values[None, :, :num_slots]
    mixed = F.scaled_dot_product_attention(stacked, *used, attn_mask=visible)
    return mixed.reshape(num_heads, num_rows, size).transpose(0, 1)


def _randn(watch: OpTimer, *shape: int) -> Tensor:
    generator = torch.Generator(watch.device).manual_seed(len(shape))
    return torch.randn(shape, generator=generator, device=watch.device).bfloat16()


def _error(out: Tensor, exact: Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


def bandwidth_record(kind: str, shape: str, timing: Timing, num_bytes: int, peak: float) -> Record:
    """A time with its bandwidth, absolute and as a share of `peak`."""
    bytes_per_s = num_bytes / timing.median_s
    return _times(kind, shape, timing) | {"bytes_per_s": bytes_per_s, "of_copy": bytes_per_s / peak}


def _times(kind: str, shape: str, timing: Timing) -> Record:
    seconds = {"median_s": timing.median_s, "low_s": timing.low_s, "high_s": timing.high_s}
    return {"kind": kind, "shape": shape, **seconds}
