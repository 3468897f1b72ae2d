"""Fit of the composition's constants to op tables; `tools/fit_engines.py` fits engines' to loads."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from swiftspec.costmodel.op_tables import OpTables
from swiftspec.devices import named_device

_ROBUST = 0.1  # relative residuals beyond this count less than by their square
_FEW_ROWS = 16
_MANY_ROWS, _WIDE = 1024, 2048
_COLD_BYTES = 8e6  # the tables' harness cycles through six copies of the weights; smaller ones stay in the L2
_LARGE_EXCHANGE = 512 * 1024
_Array = npt.NDArray[np.float64]


def fit_kernels(tables: Sequence[OpTables]) -> dict[str, float]:
    """The constants of `Kernels`, from the tables of one or more devices together."""
    floor_s, bandwidth_share = _start_and_share(*_joined(_decoding_gemm(table) for table in tables))
    exchange_s, link_share = _start_and_share(*_joined(_exchanges(table) for table in tables))
    return {
        "gemm_floor_s": floor_s,
        "bandwidth_share": bandwidth_share,
        "flops_share": float(np.median(np.concatenate([_large_gemm(table) for table in tables]))),
        "small_kernel_s": float(np.median(np.concatenate([_small_kernels(table) for table in tables]))),
        "exchange_floor_s": exchange_s,
        "link_share": link_share,
    }


def _joined(pairs: Iterable[tuple[_Array, _Array]]) -> tuple[_Array, _Array]:
    latencies, bounds = zip(*pairs, strict=True)
    return np.concatenate(latencies), np.concatenate(bounds)


def _start_and_share(latency_s: _Array, bound_s: _Array) -> tuple[float, float]:
    """a and s of latency = a + bound / s, by robust least squares of relative errors."""

    def residuals(x: _Array) -> _Array:
        errors: _Array = (x[0] * 1e-6 + bound_s / x[1]) / latency_s - 1
        return errors

    found = least_squares(residuals, [3.0, 0.8], bounds=(0.0, [np.inf, 1.0]), loss="soft_l1", f_scale=_ROBUST)
    return float(found.x[0]) * 1e-6, float(found.x[1])


def _decoding_gemm(tables: OpTables) -> tuple[_Array, _Array]:
    """Latencies of bf16 GEMMs of a few rows, and their bytes at the peak bandwidth."""
    columns = tables.rows("gemm", dtype="bf16", framework="vllm")
    few = (columns["rows"] <= _FEW_ROWS) & (2 * columns["n"] * columns["k"] >= _COLD_BYTES)
    rows, n, k = (columns[name][few].astype(float) for name in ("rows", "n", "k"))
    num_bytes = 2 * (n * k + rows * (n + k))
    return columns["latency_s"][few].astype(float), num_bytes / named_device(tables.device).memory_bandwidth_Bps


def _large_gemm(tables: OpTables) -> _Array:
    """Shares of the peak FLOP/s that GEMMs of a prompt reach, bf16 and fp8."""
    shares = []
    for dtype in ("bf16", "fp8"):
        columns = tables.rows("gemm", dtype=dtype, framework="vllm")
        large = (columns["rows"] >= _MANY_ROWS) & (columns["n"] >= _WIDE) & (columns["k"] >= _WIDE)
        flop = 2.0 * columns["rows"][large] * columns["n"][large] * columns["k"][large]
        shares.append(flop / columns["latency_s"][large] / named_device(tables.device).peak_flops[dtype])
    return np.concatenate(shares)


def _exchanges(tables: OpTables) -> tuple[_Array, _Array]:
    """Latencies of all-reduces in one step, and the bytes a device receives at the peak of its links."""
    columns = tables.rows("collective", op="all_reduce")
    chosen = np.isin(columns["implementation"], ("sglang_custom", "trtllm")) & (columns["num_bytes"] <= _LARGE_EXCHANGE)
    received = (columns["devices"][chosen] - 1.0) * columns["num_bytes"][chosen]
    return columns["latency_s"][chosen].astype(float), received / named_device(tables.device).link_bandwidth_Bps


def _small_kernels(tables: OpTables) -> _Array:
    """Quantisation of a few rows by given scales: reads a little, writes less."""
    columns = tables.rows("quantisation", framework="trtllm", scale="given")
    few: _Array = columns["latency_s"][columns["rows"] <= _FEW_ROWS].astype(float)
    return few
