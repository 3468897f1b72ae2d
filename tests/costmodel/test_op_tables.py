"""Files of op tables: what is saved is loaded, what is broken is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.shipped import shipped_tables

PATH = shipped_tables("h200-sxm")
assert PATH is not None


@pytest.fixture(scope="module")
def tables() -> OpTables:
    assert PATH is not None
    return OpTables.load(PATH)


def _rewritten(path: Path, **changes: Any) -> Path:
    assert PATH is not None
    with np.load(PATH) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez_compressed(path, **arrays)
    return path


def test_what_is_saved_is_loaded(tables: OpTables, tmp_path: Path) -> None:
    tables.save(tmp_path / "ops.npz")
    again = OpTables.load(tmp_path / "ops.npz")
    assert again.device == "h200-sxm"
    assert again.sources == tables.sources
    for table, columns in tables.tables.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(again.tables[table][name], column)


def test_rows_of_one_library(tables: OpTables) -> None:
    columns = tables.rows("gemm", framework="vllm", dtype="fp8")
    assert set(columns["framework"].tolist()) == {"vllm"}
    assert set(columns["dtype"].tolist()) == {"fp8"}
    assert len(columns["rows"]) > 483 * 30


@pytest.mark.parametrize("device", ["h100-sxm", "h200-sxm"])
def test_a_shipped_file_is_small_and_says_whose_it_is(device: str) -> None:
    path = shipped_tables(device)
    assert path is not None
    assert path.stat().st_size < 1.5e6
    tables = OpTables.load(path)
    assert tables.licence == "Apache-2.0"
    assert "NVIDIA" in tables.attribution


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"gemm.n": None}, "gemm.n is missing"),
        ({"gemm.n": np.array([1.5])}, "gemm.n is float64"),
        ({"about": None}, "about is missing"),
        ({"about": np.array(json.dumps({"schema": "x"}))}, "schema is 'x'"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    path = _rewritten(tmp_path / "broken.npz", **changes)
    with pytest.raises(ValueError, match=complaint) as caught:
        OpTables.load(path)
    assert str(path) in str(caught.value)


def test_a_latency_that_is_no_number_is_refused(tables: OpTables, tmp_path: Path) -> None:
    seconds = tables.tables["gemm"]["latency_s"].copy()
    seconds[7] = np.nan
    with pytest.raises(ValueError, match=r"gemm.latency_s holds nan"):
        OpTables.load(_rewritten(tmp_path / "nan.npz", **{"gemm.latency_s": seconds}))


def test_other_bytes_are_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "ops.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a file of op tables"):
        OpTables.load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        OpTables.load(tmp_path / "none.npz")
