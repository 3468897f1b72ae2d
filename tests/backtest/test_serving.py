"""Serving points predicted from op tables."""

from pathlib import Path
from statistics import mean, median

import pytest

from swiftspec.backtest.rows import Row
from swiftspec.backtest.serving import (
    FITTED,
    POINTS,
    SPARSE_POINTS,
    fit_constants,
    read_points,
    serving_rows,
)
from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.files.csv_rows import read_cells
from tests.backtest.conftest import Found

HEADER = "system,model,framework,version,batch,tp,concurrency,isl,osl,quant,gemm_quant,tpot_ms,id"
ROW = "h200_sxm,meta-llama/Llama-3.1-70B,vllm,,8,4,8,1024,1024,fp8,fp8,10.136,one"


@pytest.fixture(scope="module")
def rows(serving: Found) -> list[Row]:
    return serving[0]


def test_predictions_are_nearer_than_those_of_the_tables_own_planner(rows: list[Row]) -> None:
    errors = [abs(row.error) for row in rows]
    assert len(rows) == 84
    assert mean(errors) < 0.03  # AIConfigurator 0.12.0 itself: 0.065
    assert median(errors) < 0.025  # and 0.048


def test_systems_that_were_left_out_are_predicted_nearly_as_well(rows: list[Row]) -> None:
    errors = [abs(row.error_leave_one_out) for row in rows if row.error_leave_one_out is not None]
    assert len(errors) == 84
    assert mean(errors) < 0.04


def test_the_stored_constants_are_those_of_a_fit() -> None:
    refitted = fit_constants(read_points(POINTS).points)
    assert refitted == pytest.approx({name: CONSTANTS[name] for name in FITTED}, rel=0.01)


def test_every_constant_is_listed(serving: Found) -> None:
    _, constants = serving
    assert {constant.name for constant in constants} >= set(FITTED)
    assert all(constant.fitted_on for constant in constants)


def _file(path: Path, *rows: str) -> Path:
    path.write_text("\n".join((HEADER, *rows)) + "\n")
    return path


def test_any_file_with_these_columns_is_predicted(tmp_path: Path, rows: list[Row]) -> None:
    (row,), _ = serving_rows(_file(tmp_path / "points.csv", ROW))
    (known,) = [other for other in rows if other.name == row.name]
    assert row.predicted == known.predicted
    assert row.error == known.error


def test_what_cannot_be_priced_is_counted(tmp_path: Path) -> None:
    path = _file(
        tmp_path / "points.csv",
        ROW,
        ROW.replace("meta-llama/Llama-3.1-70B", "mystery/Mystery-MoE"),
        ROW.replace("h200_sxm", "tpu"),
        ROW.replace("vllm", "tgi"),
        ROW.replace("fp8,fp8", ",nvfp4"),
    )
    found = read_points(path)
    assert len(found.points) == 1
    assert sum(found.skipped.values()) == 4


def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = _file(tmp_path / "points.csv", ROW, ROW.replace("10.136", "soon"))
    with pytest.raises(ValueError, match=r"points.csv, line 3: tpot_ms is 'soon'"):
        serving_rows(path)


def test_a_file_without_a_dense_row_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "points.csv", ROW.replace("Llama-3.1-70B", "Mystery-MoE"))
    with pytest.raises(ValueError, match="no row can be predicted: 1 of a model"):
        serving_rows(path)


@pytest.mark.parametrize(
    ("repository", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
    ],
)
def test_repositories_are_known_by_their_base_model(repository: str, model: str, tmp_path: Path) -> None:
    path = _file(tmp_path / "points.csv", ROW.replace("meta-llama/Llama-3.1-70B", repository))
    assert read_points(path).points[0].model == model


def test_sparse_points_are_met_without_a_fit(sparse_points: list[Row]) -> None:
    errors = [abs(row.error) for row in sparse_points]
    assert len(errors) == 122
    assert median(errors) < 0.12
    assert mean(errors) < 0.16
    # Where engine and kernels are those of the tables, on H100.
    hopper = [abs(row.error) for row in sparse_points if "h100-sxm" in row.name]
    assert len(hopper) == 48
    assert mean(hopper) < 0.06


def test_sparse_points_are_met_more_nearly_than_by_the_tables_own_planner(sparse_points: list[Row]) -> None:
    ours = {row.source.split(", ")[-1]: abs(row.error) for row in sparse_points}
    columns = ("id", "tpot_ms", "aiconfigurator_tpot_ms")
    theirs = {
        cells["id"]: abs(float(cells["aiconfigurator_tpot_ms"]) / float(cells["tpot_ms"]) - 1)
        for _, cells in read_cells(SPARSE_POINTS, columns)
        if cells["id"] in ours
    }
    assert theirs.keys() == ours.keys()
    assert (mean(theirs.values()), median(theirs.values())) == pytest.approx((0.257, 0.177), abs=0.001)
    assert mean(ours.values()) < mean(theirs.values())
    assert median(ours.values()) < median(theirs.values())


def test_sparse_rows_are_read_by_what_their_id_says(tmp_path: Path) -> None:
    header = HEADER + ",attention_dp,moe_tp,moe_ep"
    base = "h200_sxm,Qwen/Qwen3-235B-A22B,vllm,,8,4,8,1024,1024,fp8,fp8,10.1"
    path = tmp_path / "points.csv"
    products = base.replace(",8,4,8,", ",8,16,8,")
    rows = [f"{base},one,1,4,1", f"{products},x_tp4_ep4_7,1,4,4", f"{base.replace(',8,4,8,', ',8,1,8,')},dp,4,1,4"]
    path.write_text("\n".join((header, *rows, rows[0].replace("one", "again"))) + "\n")
    found = read_points(path)
    by_width, whole = found.points
    assert (by_width.degree, whole.degree) == (4, 4)
    assert by_width.spec.expert_parameters == whole.spec.expert_parameters
    assert by_width.spec != whole.spec
    assert found.skipped == {
        "with data-parallel attention, which is not planned": 1,
        "repeating the measurement of another row": 1,
    }
