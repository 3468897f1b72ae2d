"""Times of whole forwards of well-known models with random weights, and of their kernels."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import PRODUCTS, Ops, ops_for, triton_ops
from swiftspec.engine.model.gpu.weights import FORMATS, read_bytes
from swiftspec.engine.model.weights.checkpoint import weight_shapes
from swiftspec.models import known_model
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies.effects import ForwardKind, Row
from swiftspec.profiler.op_timer import OpTimer
from tools.baselines import Record, bandwidth_record, copy_record

MODELS = {"32B": "qwen3-32b", "8B": "llama-3.1-8b"}
WAYS = ("torch", "default", "tuned")  # products by torch, by kernels with `default_config`, or with this GPU's table
_ROWS = 8
_TREE_SLOTS = 64
_POSITIONS = 4096


def forward_record(
    watch: OpTimer,
    *,
    model: str,
    spec: ModelSpec,
    dtype: str,
    context: int,
    products: str = "tuned",
    pdl: bool = True,
    trace: Path | None = None,
) -> Record:
    """Time a forward of 8 rows, from rows on the host to logits on the device.

    Parameters
    ----------
    model : str
        Name in the record.
    spec : ModelSpec
        Shape of the model.
    dtype : str
        One of `FORMATS`.
    context : int
        Tokens before these rows.
    products : str
        One of `WAYS`.
    pdl : bool
        Whether kernels start while their predecessors end.
    trace : Path, optional
        File for the kernels of one forward, in the format of browsers' trace viewers. The record then sums them up.
    """
    if products not in WAYS:
        raise ValueError(f"products is {products!r}; expected one of {', '.join(WAYS)}")
    # A decoder and its cache refer to each other, so the previous model may still be in memory, and two do not fit.
    gc.collect()
    weight_format = FORMATS[dtype]
    weights = _RandomWeights(spec, device=watch.device, dtype=weight_format.dtype)
    ops = _ops(watch.device, products, pdl=pdl)
    decoder = GpuDecoder(spec, weights, weight_format=weight_format, device=watch.device, ops=ops)
    cache = decoder.new_cache(context + _TREE_SLOTS)
    decoder.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, (1,) * context),)), (cache,))
    chain = tuple(Row(1, context + row, (1 << row) - 1) for row in range(_ROWS))
    batch = ForwardBatch(ForwardKind.EXACT, (Rows(0, chain),))

    def forward() -> None:
        decoder.forward(batch, (cache,))
        cache.tree_length = 0  # as cache.keep does, but without its kernel, which does not belong to a forward

    peak = copy_record(watch)["bytes_per_s"]
    timing = watch.eager(forward)
    record = bandwidth_record("forward", model, timing, read_bytes(spec, weight_format), peak)
    record |= {"dtype": dtype, "products": products, "pdl": pdl}
    return record if trace is None else record | {"kernels": _traced(forward, trace, watch.device)}


def shape_of(model: str, *, quick: bool) -> ModelSpec:
    """The shape of one of `MODELS`; with `quick` a tiny one, for a dry run."""
    if quick:
        return replace(ModelSpec.from_directory(model_directory("demo/target")), num_layers=2)
    return replace(known_model(MODELS[model]).spec, max_position=_POSITIONS)


def _ops(device: torch.device, products: str, *, pdl: bool) -> Ops:
    """The engine's operations, with other products unless these are "tuned"; on a CPU always the engine's."""
    if device.type != "cuda":
        return ops_for(device)
    ops = triton_ops(pdl=pdl)
    if products == "torch":
        return replace(ops, linear=PRODUCTS["linear"], gate_up=PRODUCTS["gate_up"])
    return replace(ops, **_untuned(pdl)) if products == "default" else ops


def _untuned(pdl: bool) -> dict[str, Any]:
    """Products of the kernels with `default_config`, whatever this GPU's table says."""
    from swiftspec.kernels.products import default_config
    from swiftspec.kernels.quantised_gemm import Int4Weight, quantised_gemm
    from swiftspec.kernels.skinny_gemm import gate_up, skinny_gemm

    def untuned(kernel: Any, x: Tensor, weight: Any, **options: Any) -> Tensor:
        bits = 16 if isinstance(weight, Tensor) else 4 if isinstance(weight, Int4Weight) else 8
        n, k = weight.shape
        config = default_config(x.shape[0], n, k, bits=bits)
        answer: Tensor = kernel(x, weight, config=config, pdl=pdl, **options)
        return answer

    kernels = {"linear": skinny_gemm, "gate_up": gate_up, "quantised_gemm": quantised_gemm}
    return {name: partial(untuned, kernel) for name, kernel in kernels.items()}


def _traced(forward: Callable[[], None], path: Path, device: torch.device) -> dict[str, float]:
    """Microseconds of each kernel in one forward, longest first, after `idle`: the time that no kernel ran."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        forward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    profiler.export_chrome_trace(str(path))
    is_kernel = {"cuda": "CUDA", "cpu": "CPU"}[device.type]
    spans = [event for event in profiler.events() if event.device_type.name == is_kernel]
    times: dict[str, float] = {}
    for event in spans:
        times[event.name] = times.get(event.name, 0.0) + event.time_range.elapsed_us()
    busy_us, end_us = 0.0, -math.inf
    for event in sorted(spans, key=lambda event: event.time_range.start):
        busy_us += max(0.0, event.time_range.end - max(end_us, event.time_range.start))
        end_us = max(end_us, event.time_range.end)
    first_us = min((event.time_range.start for event in spans), default=0.0)
    idle_us = max(0.0, end_us - first_us - busy_us) if spans else 0.0
    longest = sorted(times.items(), key=lambda item: -item[1])
    return {"idle": idle_us, **dict(longest)}


class _RandomWeights(Mapping[str, Tensor]):
    """Random weights, made on the device one at a time: 64 GB fit there once, and are not copied from the host."""

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
