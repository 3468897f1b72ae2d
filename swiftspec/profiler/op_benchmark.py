"""Timing of the operations that a model pair's forwards consist of, on one device, and of the device's own limits.

R rows, N x K a weight, H query heads, G key/value heads, D head dimension, C slots of a cache.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from swiftspec.costmodel.op_tables import COLUMNS, OpTables, Source, columns_of
from swiftspec.engine.model.gpu.cuda_graph import GraphPool, Replay
from swiftspec.engine.model.gpu.ops import ops_for
from swiftspec.engine.model.gpu.weights import FORMATS, WeightFormat, build_weight
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.files.document import Origin
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec
from swiftspec.profiler.helper_processes import answer_of_ranks
from swiftspec.profiler.op_timer import OpTimer, Timing
from swiftspec.progress import Progress

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 500, 1000, 2000, 4000)
MESSAGE_BYTES = tuple(1 << exponent for exponent in range(13, 21))  # 8 KB to 1 MB
FRAMEWORK = "swiftspec"
LIMITS = ("copy", "read")  # operations that do nothing but move bytes
_COPIED_CACHES = 8  # size of a copy, in multiples of the last-level cache
_MOST_DEVICES = 8  # in a group
_BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
# Of all-reduces: samples, those before them that do not count, and calls of a sample
_SAMPLES, _WARM_UP, _IN_A_ROW = 30, 3, 10
_TREE_WORDS, _WORD_BITS = 2, 32
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One operation at one size."""

    op: str
    sizes: Mapping[str, int]  # of one device's shard, by name
    dtype: str
    timing: Timing
    num_bytes: int = 0  # least number of bytes moved from and to memory; 0 if the data is in the cache or none is moved
    devices: int = 1  # number that take part
    implementation: str = FRAMEWORK  # if there are several

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes per second at the median; None if no bytes are counted."""
        return self.num_bytes / self.timing.median_s if self.num_bytes else None

    @property
    def shape(self) -> str:
        """Its sizes in words."""
        return " ".join(f"{name}={size}" for name, size in self.sizes.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkGrid:
    """Rows, contexts, group sizes and message sizes to measure."""

    rows: Sequence[int] = ROWS
    contexts: Sequence[int] = CONTEXTS
    degrees: Sequence[int] = (1,)
    message_bytes: Sequence[int] = MESSAGE_BYTES


def measure_ops(
    models: Iterable[tuple[ModelSpec, str]],
    *,
    watch: OpTimer,
    grid: BenchmarkGrid,
    num_devices: int,
    progress: Progress,
) -> Iterator[OpRow]:
    """Time the device's own limits, then every operation of the models, given as pairs of shape and dtype.

    watch: timer on the device. num_devices: number of devices: all-reduces are timed in groups of 2 up to all of them,
    at most 8.
    """
    jobs: dict[str, Callable[[], list[OpRow]]] = {"copies and launches": partial(_limits, watch)}
    jobs |= dict(_jobs(models, Bench(watch), grid))
    if num_devices > 1:
        jobs[f"all-reduce in groups of up to {num_devices}"] = partial(
            _all_reduces, watch.device.type, num_devices, grid.message_bytes
        )
    for done, (what, job) in enumerate(jobs.items()):
        progress(done, len(jobs), what)
        yield from job()


def peak_bytes_per_s(rows: Iterable[OpRow]) -> float:
    """Peak bandwidth that percentages refer to: the larger of a copy's (read and write) and a sum's (read only)."""
    return max(bandwidth for row in rows if row.op in LIMITS and (bandwidth := row.bytes_per_s))


class Bench:
    """Timer that cases are timed with, and the operations that the engine uses on its device."""

    def __init__(self, watch: OpTimer) -> None:
        self.watch, self.ops = watch, ops_for(watch.device)
        self._generator = torch.Generator(watch.device).manual_seed(0)

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Random numbers: on zeros, products draw less power and run faster."""
        return torch.randn(shape, generator=self._generator, device=self.watch.device).to(dtype)

    def products(self, n: int, k: int, weight_format: WeightFormat, *, gated: bool, rows: Sequence[int]) -> list[OpRow]:
        """x W^T for x of these rows; `gated`: silu of its first half times the other."""
        weight = self.randn(n, k, dtype=weight_format.dtype) / math.sqrt(k)
        num_bytes = _num_bytes(build_weight(weight, weight_format))
        weights = [build_weight(weight.clone(), weight_format) for _ in range(self.watch.copies(num_bytes))]
        is_quantised = not isinstance(weights[0], Tensor)  # int4 leaves weights unchanged if it cannot pack them
        if is_quantised:
            gated, multiply = False, self.ops.quantised_gemm
        else:
            multiply = self.ops.gate_up if gated else self.ops.linear
        measured = []
        for num_rows in rows:
            x = self.randn(num_rows, k, dtype=weight_format.dtype)
            timing = self.watch.graphed(multiply, [(x, weight) for weight in weights])
            measured.append(
                OpRow(
                    op="gate_up" if gated else "gemm",
                    sizes={"n": n, "k": k, "rows": num_rows},
                    dtype=(is_quantised and weight_format.quantised) or _NAMES[weight_format.dtype],
                    timing=timing,
                    num_bytes=num_bytes,
                )
            )
        return measured

    def attention(self, spec: ModelSpec, dtype: torch.dtype, *, rows: int, context: int) -> OpRow:
        """A chain of rows, the last of `context` slots, over a layer's cache."""
        heads, groups, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
        num_bytes = 2 * groups * context * size * dtype.itemsize
        keys, values = self.randn(2, groups, context + _TREE_WORDS * _WORD_BITS, size, dtype=dtype)
        caches = [(keys.clone(), values.clone()) for _ in range(self.watch.copies(num_bytes))]
        q_RHD = self.randn(rows, heads, size, dtype=dtype)
        lengths = torch.tensor([context - rows, 0], dtype=torch.int32, device=self.watch.device)
        attend = partial(
            self.ops.tree_attention,
            ancestors_RW=chain_words(rows).to(self.watch.device),
            lengths_2=lengths,
            scale=size**-0.5,
            workspace=self.ops.tree_attention_workspace(rows, heads, keys),
        )
        sizes = {"heads": heads, "kv_heads": groups, "head_dim": size, "context": context, "rows": rows}
        timing = self.watch.graphed(attend, [(q_RHD, *cache) for cache in caches])
        return OpRow(op="attention", sizes=sizes, dtype=_NAMES[dtype], timing=timing, num_bytes=num_bytes)

    def norm(self, spec: ModelSpec, dtype: torch.dtype, *, rows: int) -> OpRow:
        """Residual addition and RMSNorm of data in the cache."""
        residual, update = self.randn(2, rows, spec.hidden_size)
        arguments = (residual, update.to(dtype), self.randn(spec.hidden_size, dtype=dtype))
        timing = self.watch.graphed(partial(self.ops.rms_norm, eps=spec.rms_norm_eps), [arguments])
        sizes = {"hidden": spec.hidden_size, "rows": rows}
        return OpRow(op="rms_norm", sizes=sizes, dtype=_NAMES[dtype], timing=timing)

    def rope(self, spec: ModelSpec, dtype: torch.dtype, *, rows: int) -> OpRow:
        """Rotation of queries and keys, and the write to the cache."""
        heads, groups, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
        keys, values = self.randn(2, groups, 2 * rows, size, dtype=dtype)
        angles = self.randn(2 * rows, size // 2)
        arguments = (
            self.randn(rows, (heads + 2 * groups) * size, dtype=dtype),
            torch.cat([angles.cos(), angles.sin()], -1),
            torch.arange(rows, dtype=torch.int32, device=self.watch.device),
            torch.tensor([rows, 0], dtype=torch.int32, device=self.watch.device),
            keys,
            values,
        )
        norms = {name: self.randn(size, dtype=dtype) if spec.qk_norm else None for name in ("q_norm_D", "k_norm_D")}
        write = partial(self.ops.rope_kv_write, num_heads=heads, eps=spec.rms_norm_eps, **norms)
        sizes = {"heads": heads, "kv_heads": groups, "head_dim": size, "rows": rows}
        return OpRow(op="rope_kv", sizes=sizes, dtype=_NAMES[dtype], timing=self.watch.graphed(write, [arguments]))


def chain_words(num_rows: int) -> Tensor:
    """int32 [R, 2]: row r sees tree slots 0 to r."""
    slots = torch.arange(_TREE_WORDS * _WORD_BITS)
    visible = (slots <= torch.arange(num_rows)[:, None]).view(num_rows, _TREE_WORDS, _WORD_BITS)
    words = (visible.long() << torch.arange(_WORD_BITS)).sum(-1)
    return words.to(torch.int32)  # the highest bit is the sign's


def _jobs(
    models: Iterable[tuple[ModelSpec, str]], bench: Bench, grid: BenchmarkGrid
) -> Iterator[tuple[str, Callable[[], list[OpRow]]]]:
    """Jobs by name; those that both models have in common appear once."""
    of_rows = [{"rows": rows} for rows in grid.rows]
    of_both = [{"rows": rows, "context": context} for context in grid.contexts for rows in grid.rows if rows <= context]
    for spec, dtype in models:
        for degree in grid.degrees:
            shard, weight_format = sharded(spec, degree), FORMATS[dtype]
            plain = FORMATS[str(weight_format.dtype).removeprefix("torch.")]
            hidden, inner = spec.hidden_size, shard.intermediate_size
            for n, k, form in (
                (shard.query_size + 2 * shard.kv_size, hidden, weight_format),
                (hidden, shard.query_size, weight_format),
                (hidden, inner, weight_format),
                (shard.vocab_size, hidden, plain),
            ):
                yield f"{n} x {k} {_name(form)}", partial(bench.products, n, k, form, gated=False, rows=grid.rows)
            gated = partial(bench.products, 2 * inner, hidden, weight_format, gated=True, rows=grid.rows)
            yield f"gate and up, {2 * inner} x {hidden} {_name(weight_format)}", gated
            heads = f"{shard.num_heads}/{shard.num_kv_heads} heads of {shard.head_dim}, {_NAMES[weight_format.dtype]}"
            yield f"attention, {heads}", partial(_each, bench.attention, shard, weight_format.dtype, of_both)
            yield f"rotation, {heads}", partial(_each, bench.rope, shard, weight_format.dtype, of_rows)
            norms = partial(_each, bench.norm, spec, weight_format.dtype, of_rows)
            yield f"norm, {hidden} {_NAMES[weight_format.dtype]}", norms


def _each(
    time: Callable[..., OpRow], spec: ModelSpec, dtype: torch.dtype, sizes: Iterable[Mapping[str, int]]
) -> list[OpRow]:
    return [time(spec, dtype, **size) for size in sizes]


def _limits(watch: OpTimer) -> list[OpRow]:
    """A copy and a sum much larger than the cache; a launch of a trivial kernel, alone and in a graph."""
    num_bytes = _COPIED_CACHES * watch.cached_bytes
    source = torch.ones(num_bytes // 4, device=watch.device)
    target = torch.empty_like(source)
    copied = watch.graphed(target.copy_, [(source,)], in_a_row=1)
    read = watch.graphed(torch.sum, [(source,)], in_a_row=1)
    number = torch.zeros(1, device=watch.device)
    return [
        OpRow(op="copy", sizes={"bytes": num_bytes}, dtype="fp32", timing=copied, num_bytes=2 * num_bytes),
        OpRow(op="read", sizes={"bytes": num_bytes}, dtype="fp32", timing=read, num_bytes=num_bytes),
        OpRow(op="launch", sizes={}, dtype="fp32", timing=watch.eager(number.add_, [(1.0,)])),
        OpRow(op="launch in a graph", sizes={}, dtype="fp32", timing=watch.graphed(number.add_, [(1.0,)] * 200)),
    ]


def _all_reduces(device: str, num_devices: int, message_bytes: Sequence[int]) -> list[OpRow]:
    return [
        OpRow(
            op="all_reduce",
            sizes={"bytes": size},
            dtype="fp32",
            timing=timing,
            devices=degree,
            implementation=_BACKENDS[device],
        )
        for degree in range(2, min(num_devices, _MOST_DEVICES) + 1)
        for size, timing in all_reduce_times(device, degree, message_bytes).items()
    ]


def all_reduce_times(device: str, degree: int, message_bytes: Sequence[int]) -> dict[int, Timing]:
    """Seconds of one all-reduce among `degree` devices, by bytes: the slowest rank's. RuntimeError if one fails."""
    with run_folder() as folder:
        arguments = (degree, device, str(folder / "rendezvous"), tuple(message_bytes))
        what = f"all-reduce among {degree} of {device}"
        samples_s: dict[int, list[float]] = answer_of_ranks(what, _rank, arguments, num_ranks=degree)
    return {size: Timing.of(seconds) for size, seconds in samples_s.items()}


def _rank(rank: int, degree: int, device: str, rendezvous: str, message_bytes: Sequence[int], answers: Any) -> None:
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(_BACKENDS[device], init_method=f"file://{rendezvous}", rank=rank, world_size=degree)
    try:
        samples_s = {size: _samples(place, size) for size in message_bytes}
        if rank == 0:
            answers.put(samples_s)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _samples(place: torch.device, num_bytes: int) -> list[float]:
    """Samples, each the mean of a few in a row, on GPUs in one CUDA graph; every rank takes the same number."""
    tensor = torch.zeros(num_bytes // 4, device=place)

    def several() -> None:
        for _ in range(_IN_A_ROW):
            dist.all_reduce(tensor)

    watch, replay = OpTimer(place), Replay(several, GraphPool(place))
    for _ in range(_WARM_UP):
        replay()
    seconds = torch.tensor([watch.once(replay) / _IN_A_ROW for _ in range(_SAMPLES)], device=place)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return [float(value) for value in seconds]


def _num_bytes(weight: Any) -> int:
    """Bytes that a kernel reads: the weights, and the scales of quantised ones."""
    held = [weight] if isinstance(weight, Tensor) else [getattr(weight, part.name) for part in fields(weight)]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _name(weight_format: WeightFormat) -> str:
    return weight_format.quantised or _NAMES[weight_format.dtype]


def op_tables(rows: Sequence[OpRow], *, device: str, origin: Origin) -> OpTables:
    """Op tables of the rows, from which forwards can be composed, under the framework `swiftspec`.

    For attention, a tree of R rows is one query with R times as many heads. `gate_up` is a product of its size, with
    the SiLU included. Kinds that op tables do not have are left out: copies, launches, norms, rotations.
    """
    tables: dict[str, list[dict[str, object]]] = {name: [] for name in COLUMNS}
    for row in rows:
        timed: dict[str, object] = {"framework": FRAMEWORK, "latency_s": row.timing.median_s, **row.sizes}
        if row.op in ("gemm", "gate_up"):
            tables["gemm"].append(timed | {"dtype": row.dtype})
        elif row.op == "attention":
            queries = {"sequences": 1, "heads": row.sizes["heads"] * row.sizes["rows"]}
            tables["attention"].append(timed | queries | {"kv_dtype": row.dtype})
        elif row.op == "all_reduce":
            size = {"devices": row.devices, "num_bytes": row.sizes["bytes"]}
            tables["collective"].append(timed | size | {"op": row.op, "implementation": row.implementation})
    return OpTables(
        origin=origin,
        device=device,
        sources=(
            Source(library=FRAMEWORK, version=origin.versions["swiftspec-llm"], tables="gemm, attention, collective"),
        ),
        licence="none: measured here",
        attribution="measured on this machine",
        tables={name: columns_of(name, entries) for name, entries in tables.items()},
    )
