"""Error of interpolation: entries of the shipped tables, predicted from the other entries."""

import numpy as np
import pytest

from swiftspec.costmodel.grid import Grid
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.shipped import shipped_tables


def _tables(device: str) -> OpTables:
    path = shipped_tables(device)
    assert path is not None
    return OpTables.load(path)


def _left_out_errors(points: np.ndarray, values: np.ndarray, *, axis: int, knots: np.ndarray) -> list[float]:
    errors: list[float] = []
    for knot in knots:
        left = points[:, axis] == knot
        grid = Grid(points[~left], values[~left])
        met = zip(points[left], values[left], strict=True)
        errors += [abs(grid.at(*point).value / float(value) - 1) for point, value in met]
    return errors


@pytest.mark.parametrize("device", ["h100-sxm", "h200-sxm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_width_that_was_not_timed_is_met_within_a_few_percent(device: str, dtype: str) -> None:
    columns = _tables(device).rows("gemm", framework="vllm", dtype=dtype)
    chosen = (columns["rows"] == 8) & (columns["n"] >= 512) & (columns["k"] >= 2048)
    points = np.stack([columns["n"], columns["k"]], axis=1)[chosen].astype(float)
    num_bytes = points.prod(axis=1)
    errors = _left_out_errors(
        points, columns["latency_s"][chosen] / num_bytes, axis=0, knots=np.unique(points[:, 0])[1:-1]
    )
    assert np.median(errors) < 0.04
    assert np.quantile(errors, 0.9) < 0.15


@pytest.mark.parametrize("device", ["h100-sxm", "h200-sxm"])
def test_four_devices_are_met_from_two_and_eight(device: str) -> None:
    columns = _tables(device).rows("collective", op="all_reduce")
    errors = []
    for implementation in set(columns["implementation"].tolist()):
        chosen = (columns["implementation"] == implementation) & (columns["num_bytes"] >= 4096)
        chosen &= columns["num_bytes"] <= 1 << 20
        points = np.stack([columns["devices"], columns["num_bytes"]], axis=1)[chosen].astype(float)
        errors += _left_out_errors(points, columns["latency_s"][chosen], axis=0, knots=np.array([4]))
    assert np.median(errors) < 0.08
