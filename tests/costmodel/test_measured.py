"""Kernels from the shipped tables, against figures that their source states."""

from dataclasses import replace

import pytest

from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.measured import TableKernels
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.shipped import kernels_of, shipped_tables
from swiftspec.devices import DEVICES
from swiftspec.models.layer_parts import GroupedAttention
from swiftspec.timing.latency import Provenance


def _tables(device: str) -> OpTables:
    path = shipped_tables(device)
    assert path is not None
    return OpTables.load(path)


@pytest.mark.parametrize(
    ("device", "rows", "n", "k", "us"),
    [
        ("h200-sxm", 8, 8192, 3584, 16.8),
        ("h200-sxm", 8, 7168, 8192, 31.4),  # 32.8 with 8 rows, 31.4 with 64
        ("h100-sxm", 8, 7168, 8192, 41.8),  # 43.4 with 8 rows, 41.8 with 32
        ("b200", 1, 7168, 8192, 22.55),  # 23.4 with one row, 22.55 with 8
    ],
)
def test_a_measured_gemm_is_the_least_of_what_its_source_says_for_its_rows_and_more(
    device: str, rows: int, n: int, k: int, us: float
) -> None:
    seconds, provenance = kernels_of(device).gemm(rows=rows, n=n, k=k, quant="bf16")
    assert seconds == pytest.approx(us * 1e-6, rel=0.005)
    assert provenance is Provenance.MEASURED


ENGINES = [
    (device, framework)
    for device in ("h100-sxm", "h200-sxm", "a100-sxm", "l40s", "b200")
    for framework in ("vllm", "sglang", "trtllm")
]


@pytest.mark.parametrize(("device", "framework"), ENGINES)
def test_a_gemm_never_costs_more_than_the_same_with_more_rows(device: str, framework: str) -> None:
    kernels = kernels_of(device, framework=framework)
    for quant in ("bf16", "fp8", "int4"):
        for n, k in ((1024, 1024), (2048, 2048), (7168, 8192), (28672, 4096), (5120, 3000), (128256, 2048)):
            seconds = [kernels.gemm(rows=rows, n=n, k=k, quant=quant).seconds for rows in (*range(1, 300), 768, 50_000)]
            assert seconds == pytest.approx(sorted(seconds), rel=1e-9), (quant, n, k)


def test_a_gap_in_the_rows_of_a_shape_is_left_out() -> None:
    tables = _tables("h200-sxm")
    gemm = tables.tables["gemm"]
    # Of this shape 64 rows and more are missing; those of others, which are smaller, must not stand for them.
    gone = (gemm["n"] == 7168) & (gemm["k"] == 8192) & (gemm["rows"] >= 64)
    smaller = {name: column[~gone & (gemm["n"] <= 7168)] for name, column in gemm.items()}
    kernels = TableKernels(replace(tables, tables={**tables.tables, "gemm": smaller}))
    alone = kernels.gemm(rows=8, n=7168, k=8192, quant="bf16").seconds
    assert alone == pytest.approx(31.6e-6, rel=0.01)  # what 32 rows take


def test_a_gemm_between_executors_lies_between_them() -> None:
    kernels = kernels_of("h200-sxm")
    smaller, between, larger = (kernels.gemm(rows=8, n=n, k=8192, quant="bf16") for n in (12288, 14336, 16384))
    assert smaller.seconds < between.seconds < larger.seconds
    assert between.provenance is Provenance.INTERPOLATED


def test_beyond_the_grid_bandwidth_is_held() -> None:
    kernels = kernels_of("h200-sxm")
    edge, beyond = (kernels.gemm(rows=8, n=n, k=8192, quant="bf16") for n in (65536, 131072))
    assert beyond.seconds == pytest.approx(2 * edge.seconds, rel=0.01)
    assert beyond.provenance is Provenance.INTERPOLATED


def test_fp8_reads_half_and_is_priced_without_quantising_its_input() -> None:
    tables = _tables("h200-sxm")
    columns = tables.rows("gemm", framework="vllm", dtype="fp8")
    chosen = (columns["rows"] == 8) & (columns["n"] == 7168) & (columns["k"] == 8192)
    inside = float(columns["latency_s"][chosen][0])
    seconds, provenance = TableKernels(tables).gemm(rows=8, n=7168, k=8192, quant="fp8")
    assert inside - 6e-6 < seconds < inside - 2e-6
    assert provenance is Provenance.INTERPOLATED


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("n", "k"), [(256, 256), (1024, 1024), (1024, 4096), (4096, 4096), (8192, 1024)])
def test_fp8_lies_between_its_bytes_and_bf16(framework: str, n: int, k: int) -> None:
    kernels = kernels_of("h200-sxm", framework=framework)
    bytes_s = n * k / DEVICES["h200-sxm"].memory_bandwidth_Bps
    eight, sixteen = (kernels.gemm(rows=8, n=n, k=k, quant=quant).seconds for quant in ("fp8", "bf16"))
    assert bytes_s + 1e-6 < eight < sixteen + 2e-6


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("n", "k"), [(10240, 8192), (28672, 4096), (16384, 8192)])
def test_a_large_gemm_in_nvfp4_lies_between_its_bytes_and_less_than_bf16(framework: str, n: int, k: int) -> None:
    kernels = kernels_of("b200", framework=framework)
    bytes_s = n * k * 4.5 / 8 / DEVICES["b200"].memory_bandwidth_Bps
    for rows in (1, 8, 64, 4096):
        four, sixteen = (kernels.gemm(rows=rows, n=n, k=k, quant=quant).seconds for quant in ("nvfp4", "bf16"))
        computing_s = 2 * rows * n * k / DEVICES["b200"].peak_flops["fp4"]
        assert max(bytes_s, computing_s) < four < 0.7 * sixteen


def test_weights_without_a_table_are_a_roofline_on_bytes() -> None:
    kernels = kernels_of("h100-sxm")
    seconds, provenance = kernels.gemm(rows=8, n=14336, k=8192, quant="int4")
    assert provenance is Provenance.ROOFLINE
    assert seconds < 0.4 * kernels.gemm(rows=8, n=14336, k=8192, quant="bf16").seconds


@pytest.mark.parametrize(
    ("implementation", "degree", "us"),
    [("sglang_custom", 2, 2.86), ("sglang_custom", 8, 4.95), ("trtllm", 4, 3.61), ("vllm_custom", 8, 6.56)],
)
def test_an_all_reduce_is_what_its_source_says(implementation: str, degree: int, us: float) -> None:
    kernels = kernels_of("h200-sxm")
    seconds, provenance = kernels.all_reduce(num_bytes=65536, degree=degree, implementation=implementation)
    assert seconds == pytest.approx(us * 1e-6, rel=0.01)
    assert provenance is Provenance.MEASURED


@pytest.mark.parametrize("device", ["h100-sxm", "h800-sxm", "l40s", "b200"])
def test_an_exchange_never_costs_more_than_one_of_more_bytes(device: str) -> None:
    kernels = kernels_of(device)
    sizes = [rows * 8192 * 2 for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)]
    for degree in (2, 4, 8):
        for name in kernels.collectives(degree):
            times = [kernels.all_reduce(num_bytes=size, degree=degree, implementation=name).seconds for size in sizes]
            assert times == pytest.approx(sorted(times), rel=1e-9), (degree, name)


@pytest.mark.parametrize("degree", [3, 5, 6, 7])
def test_odd_groups_lie_between_measured_ones(degree: int) -> None:
    kernels = kernels_of("h200-sxm")
    below, above = (2, 4) if degree < 4 else (4, 8)
    times = [
        kernels.all_reduce(num_bytes=131072, degree=devices, implementation="sglang_custom")
        for devices in (below, degree, above)
    ]
    assert times[0].seconds < times[1].seconds < times[2].seconds
    assert times[1].provenance is Provenance.INTERPOLATED


def test_slower_links_cost_an_h800_what_the_bytes_take_longer() -> None:
    fast, slow = (
        kernels_of(device).all_reduce(num_bytes=131072, degree=4, implementation="vllm_custom")
        for device in ("h100-sxm", "h800-sxm")
    )
    longer_s = 3 * 131072 * (1 / 200e9 - 1 / 450e9)
    assert longer_s < slow.seconds - fast.seconds < 2 * longer_s
    assert slow.provenance is Provenance.COMPOSED


def _attention_s(*, rows: int = 1, context: int, sequences: int = 1, device: str = "h200-sxm") -> float:
    part = GroupedAttention(num_heads=64, num_kv_heads=8, head_dim=128)
    seconds, _ = kernels_of(device).attention(part, rows=rows, context=context, sequences=sequences, kv_dtype="bf16")
    return seconds


def test_attention_is_never_faster_than_reading_its_cache() -> None:
    for context in (256, 4096, 32768, 200_000):
        num_bytes = context * 2 * 8 * 128 * 2
        assert _attention_s(context=context) > num_bytes / DEVICES["h200-sxm"].memory_bandwidth_Bps


def test_an_empty_cache_costs_less_than_the_harness_measured() -> None:
    assert _attention_s(context=1) < 8e-6


def test_a_verification_reads_its_prefix_once() -> None:
    one, eight = _attention_s(context=16384), _attention_s(rows=8, context=16384)
    separate = _attention_s(rows=8, sequences=8, context=16384)
    assert one < eight < 1.3 * one
    assert separate > 4 * one


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="engine is tgi; the op tables of h100-sxm hold sglang, "):
        kernels_of("h100-sxm", framework="tgi")
    with pytest.raises(ValueError, match="collective is 'mpi'"):
        kernels_of("h100-sxm").all_reduce(num_bytes=1024, degree=2, implementation="mpi")


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize(("n", "k"), [(2560, 8192), (8192, 8192), (14336, 4096), (57344, 8192)])
def test_the_roofline_is_near_the_tables_it_was_fitted_to(rows: int, n: int, k: int) -> None:
    measured = kernels_of("h100-sxm").gemm(rows=rows, n=n, k=k, quant="bf16").seconds
    bound = Kernels(DEVICES["h100-sxm"]).gemm(rows=rows, n=n, k=k, quant="bf16").seconds
    assert bound == pytest.approx(measured, rel=0.2)


def test_without_tables_all_is_roofline() -> None:
    kernels = Kernels(DEVICES["b200"])
    assert kernels.all_reduce(num_bytes=65536, degree=8, implementation="one_shot").provenance is Provenance.ROOFLINE
    assert kernels.gemm(rows=8, n=4096, k=4096, quant="fp8").provenance is Provenance.ROOFLINE
    assert kernels.collectives(1) == ()


def test_weights_that_stayed_in_the_cache_are_priced_as_read_from_memory() -> None:
    seconds, provenance = kernels_of("l40s").gemm(rows=8, n=2048, k=2048, quant="bf16")
    assert seconds > 2 * 2048 * 2048 / DEVICES["l40s"].memory_bandwidth_Bps
    assert provenance is Provenance.ROOFLINE


@pytest.mark.parametrize(
    "device", [device.name for device in DEVICES.values() if not device.op_tables and not device.engines]
)
def test_every_device_that_stands_on_no_other_has_tables(device: str) -> None:
    kernels = kernels_of(device)
    bytes_s = 2 * 7168 * 8192 / DEVICES[device].memory_bandwidth_Bps
    seconds, provenance = kernels.gemm(rows=8, n=7168, k=8192, quant="bf16")
    assert provenance is Provenance.MEASURED
    assert bytes_s < seconds < 2 * bytes_s
