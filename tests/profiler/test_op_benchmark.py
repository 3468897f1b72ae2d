from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from swiftspec.costmodel.measured import TableKernels
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.engine.model.gpu.ops import reference_ops
from swiftspec.engine.model.gpu.weights import FORMATS
from swiftspec.files.document import Origin
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.profiler import op_benchmark
from swiftspec.profiler.op_benchmark import BenchmarkGrid, OpRow, chain_words, measure_ops, op_tables, peak_bytes_per_s
from swiftspec.profiler.op_timer import OpTimer, Timing

CPU = torch.device("cpu")
TARGET = ModelSpec.from_directory(model_directory("demo/target"))
DRAFT = ModelSpec.from_directory(model_directory("demo/draft"))
GRID = BenchmarkGrid(rows=(1, 8), contexts=(16, 64), degrees=(1, 2))


@pytest.fixture(scope="module")
def rows() -> list[OpRow]:
    """Of the bundled pair, a target that is quantised nowhere and a draft in another dtype; next to no samples."""
    watch = OpTimer(CPU, warm_up_s=0.0, budget_s=0.0, in_a_row=1, cached_bytes=1024)
    models = [(TARGET, "float32"), (DRAFT, "bfloat16")]
    return list(measure_ops(models, watch=watch, grid=GRID, num_devices=1, progress=lambda *_: None))


def test_a_row_is_known_before_the_next_operation_is_timed() -> None:
    begun: list[str] = []
    watch = OpTimer(CPU, warm_up_s=0.0, budget_s=0.0, in_a_row=1, cached_bytes=1024)
    rows = measure_ops(
        [(DRAFT, "float32")], watch=watch, grid=GRID, num_devices=1, progress=lambda *state: begun.append(state[-1])
    )
    next(rows)
    assert begun == ["copies and launches"]


def test_every_operation_of_a_forward_is_timed_at_every_degree(rows: list[OpRow]) -> None:
    assert {row.op for row in rows} == {
        *("gemm", "gate_up", "attention", "rms_norm", "rope_kv", "copy", "read", "launch", "launch in a graph")
    }
    products = {(row.sizes["n"], row.sizes["k"]) for row in rows if row.op == "gemm" and row.dtype == "fp32"}
    # qkv, output, down and head; on one device, and a half of each on two: whole rows of all but output and down.
    assert products == {(512, 256), (256, 256), (256, 896), (4096, 256)} | {
        (256, 256),
        (256, 128),
        (256, 448),
        (2048, 256),
    }
    gated = {(row.sizes["n"], row.sizes["k"]) for row in rows if row.op == "gate_up" and row.dtype == "bf16"}
    assert gated == {(896, 128), (448, 128)}
    assert {row.sizes["rows"] for row in rows if row.op == "rms_norm"} == {1, 8}


def test_bytes_are_those_of_the_weight_or_the_cache(rows: list[OpRow]) -> None:
    head = next(row for row in rows if row.op == "gemm" and row.sizes["n"] == 4096 and row.dtype == "fp32")
    assert head.num_bytes == 4096 * 256 * 4
    assert head.bytes_per_s == pytest.approx(head.num_bytes / head.timing.median_s)
    cache = next(row for row in rows if row.op == "attention" and row.sizes["context"] == 64 and row.dtype == "bf16")
    assert cache.num_bytes == 2 * 2 * 64 * 32 * 2
    assert next(row for row in rows if row.op == "rms_norm").bytes_per_s is None
    (copy,), (read,) = ([row for row in rows if row.op == op] for op in ("copy", "read"))
    assert (copy.num_bytes, read.num_bytes) == (2 * 8 * 1024, 8 * 1024)
    assert peak_bytes_per_s(rows) == max(copy.num_bytes / copy.timing.median_s, read.num_bytes / read.timing.median_s)


def test_no_operation_is_timed_twice(rows: list[OpRow]) -> None:
    keys = [(row.op, row.dtype, row.shape) for row in rows]
    assert len(keys) == len(set(keys))


def test_tables_of_the_rows_are_saved_loaded_and_found(rows: list[OpRow], tmp_path: Path) -> None:
    op_tables(rows, device="h200-sxm", origin=Origin.here()).save(tmp_path / "ops.npz")
    kernels = TableKernels(OpTables.load(tmp_path / "ops.npz"), framework="swiftspec")
    head = next(r for r in rows if r.op == "gemm" and r.sizes == {"n": 4096, "k": 128, "rows": 8} and r.dtype == "bf16")
    assert kernels.gemm(rows=8, n=4096, k=128, quant="bf16").seconds == pytest.approx(head.timing.median_s)


def test_a_tree_is_one_query_of_more_heads(rows: list[OpRow]) -> None:
    columns = op_tables(rows, device="cpu", origin=Origin.here()).rows("attention", kv_dtype="fp32")
    assert sorted(zip(columns["heads"].tolist(), columns["context"].tolist(), strict=True)) == sorted(
        (heads * rows, context) for heads in (4, 2) for rows in (1, 8) for context in (16, 64)
    )
    assert set(columns["sequences"].tolist()) == {1}


def test_a_row_of_a_chain_sees_itself_and_what_is_before_it() -> None:
    words = chain_words(40).tolist()
    assert words[0] == [1, 0]
    assert words[31] == [-1, 0]
    assert words[39] == [-1, 0xFF]


def test_quantised_weights_are_read_with_their_scales(monkeypatch: pytest.MonkeyPatch) -> None:

    @dataclass(frozen=True, slots=True)
    class Halved:
        numbers: torch.Tensor
        scales: torch.Tensor

        def dequantise(self) -> torch.Tensor:
            return self.numbers.float() * self.scales

    def build(weight: torch.Tensor, _: object) -> Halved:
        return Halved(weight.half(), torch.ones(len(weight), 1))

    monkeypatch.setattr(op_benchmark, "build_weight", build)
    bench = op_benchmark.Bench(OpTimer(CPU, warm_up_s=0.0, budget_s=0.0, in_a_row=1, cached_bytes=1024))
    weight_format = replace(FORMATS["float32"], quantised="fp8")
    (row,) = bench.products(64, 32, weight_format, gated=True, rows=(4,))
    assert bench.ops is reference_ops()
    assert (row.op, row.dtype, row.num_bytes) == ("gemm", "fp8", 64 * 32 * 2 + 64 * 4)


def test_int4_weights_that_cannot_be_packed_are_timed_as_the_16_bits_they_stay_in() -> None:
    bench = op_benchmark.Bench(OpTimer(CPU, warm_up_s=0.0, budget_s=0.0, in_a_row=1, cached_bytes=1024))
    (row,) = bench.products(64, 128, FORMATS["int4"], gated=True, rows=(4,))
    assert (row.op, row.dtype, row.num_bytes) == ("gate_up", "bf16", 64 * 128 * 2)


def test_all_reduces_are_timed_between_processes() -> None:
    times = op_benchmark.all_reduce_times("cpu", 2, (1 << 13, 1 << 16))
    assert list(times) == [1 << 13, 1 << 16]
    for timing in times.values():
        assert 0 < timing.median_s < 1
        assert timing.num_samples == 30


def test_all_reduces_are_rows_of_the_table_of_collectives() -> None:
    timing = Timing(median_s=1e-5, low_s=1e-5, high_s=1e-5, num_samples=1)
    gemm = OpRow(op="gemm", sizes={"n": 1, "k": 1, "rows": 1}, dtype="bf16", timing=timing)
    reduced = OpRow(
        op="all_reduce", sizes={"bytes": 8192}, dtype="fp32", timing=timing, devices=2, implementation="gloo"
    )
    columns = op_tables([gemm, reduced], device="cpu", origin=Origin.here()).rows("collective", implementation="gloo")
    assert (columns["devices"].tolist(), columns["num_bytes"].tolist()) == ([2], [8192])
