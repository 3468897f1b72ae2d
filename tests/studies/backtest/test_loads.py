"""Published loads, with constants of all of them and with those that were fitted without a row's model."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import pytest

from swiftspec.engines.constants import fitted_sets
from swiftspec.files.csv_rows import read_cells
from swiftspec.studies.backtest.loads import (
    INFERENCEX,
    POINTS,
    SPARSE_POINTS,
    STAGES,
    PublishedLoads,
    load_constants,
    load_section,
)
from swiftspec.studies.backtest.rows import FIRST_TOKEN, LOAD_TIME, SPARSE_TPOT, TPOT, Row, Section, median_error

HEADER = "system,model,framework,version,batch,tp,concurrency,isl,osl,quant,gemm_quant,tpot_ms,id"
ROW = "h200_sxm,meta-llama/Llama-3.1-70B,vllm,,8,4,8,1024,1024,fp8,fp8,10.136,one"
EVERY = 10  # rows of InferenceX
OTHER = 2  # stages


def sample(loads: PublishedLoads, path: Path, *, every: int) -> PublishedLoads:
    header, *rows = loads.path.read_text().splitlines()
    path.write_text("\n".join((header, *rows[::every])) + "\n")
    return replace(loads, path=path)


def points(path: Path, *rows: str, header: str = HEADER) -> PublishedLoads:
    path.write_text("\n".join((header, *rows)) + "\n")
    return replace(POINTS, path=path)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Section:
    return load_section(sample(STAGES, tmp_path_factory.mktemp("stages") / "sample.csv", every=OTHER))


@pytest.fixture(scope="module")
def inferencex(tmp_path_factory: pytest.TempPathFactory) -> Section:
    return load_section(sample(INFERENCEX, tmp_path_factory.mktemp("loads") / "sample.csv", every=EVERY))


def test_serving_points_are_met(serving: Section) -> None:
    assert len(serving.rows) == 84
    assert {row.quantity for row in serving.rows} == {TPOT}
    assert not serving.skipped
    assert median_error(serving.rows, left_out=False) < 0.06
    # Few dense models were served by TensorRT-LLM: without one of them its constants are those of sparse models.
    assert median_error(serving.rows, left_out=True) < 0.2


def test_stages_of_a_rate_are_met_without_their_model(stages: Section) -> None:
    failed = [cells["failed"] != "0" for _, cells in read_cells(STAGES.path, ("failed",))][::OTHER]
    assert stages.skipped == {"requests failed": sum(failed)}
    for quantity, limit in ((LOAD_TIME, 0.05), (FIRST_TOKEN, 0.1)):
        rows = [row for row in stages.rows if row.quantity == quantity]
        assert len(rows) == len(failed) - sum(failed)
        assert median_error(rows, left_out=False) < limit
        assert median_error(rows, left_out=True) < 1.2 * limit


def test_loads_of_many_clients_are_met(inferencex: Section) -> None:
    total = len(INFERENCEX.path.read_text().splitlines()) - 1
    assert len(inferencex.rows) + sum(inferencex.skipped.values()) == len(range(0, total, EVERY))
    assert {row.quantity for row in inferencex.rows} == {SPARSE_TPOT}
    assert median_error(inferencex.rows, left_out=False) < 0.1
    assert median_error(inferencex.rows, left_out=True) < 0.2


def test_sparse_points_are_met_more_nearly_than_by_the_tables_own_planner(sparse_points: Section) -> None:
    ours = {row.source.split(", ")[-1]: row for row in sparse_points.rows}
    columns = ("id", "tpot_ms", "aiconfigurator_tpot_ms")
    theirs = [
        abs(float(cells["aiconfigurator_tpot_ms"]) / float(cells["tpot_ms"]) - 1)
        for _, cells in read_cells(SPARSE_POINTS.path, columns)
        if cells["id"] in ours
    ]
    assert (mean(theirs), median(theirs)) == pytest.approx((0.257, 0.177), abs=0.001)
    assert len(ours) == len(theirs) == 122
    assert median_error(sparse_points.rows, left_out=False) < 0.12
    assert median_error(sparse_points.rows, left_out=True) < median(theirs)
    assert mean(abs(row.error_leave_one_out or 0) for row in ours.values()) < mean(theirs)


def test_a_measurement_that_is_repeated_counts_once(sparse_points: Section) -> None:
    assert sparse_points.skipped == {
        "its degrees are products, which do not tell how attention in data parallel is divided": 22,
        "they repeat the measurement of another row": 12,
    }


def test_loads_with_drafts_of_unknown_acceptance_are_only_counted(inferencex: Section, tmp_path: Path) -> None:
    header, *rows = INFERENCEX.path.read_text().splitlines()
    place = header.split(",").index("spec")
    drafted = [row for row in rows if row.split(",")[place] == "mtp"][:2]
    found = load_section(replace(INFERENCEX, path=points(tmp_path / "few.csv", *drafted, header=header).path))
    assert found.rows == ()
    assert list(found.skipped.values()) == [2]
    assert "acceptance" in next(iter(found.skipped))


def test_any_file_with_these_columns_is_predicted(tmp_path: Path, serving: Section) -> None:
    found = load_section(points(tmp_path / "points.csv", ROW.replace(",vllm,,", ",vllm,0.12.0,")))
    (row,) = found.rows
    assert row.name == "llama-3.1-70b fp8, vllm, 4 x h200-sxm, batch 8, 1024/1024"
    assert row.name in {other.name for other in serving.rows}
    assert (row.quantity, row.published) == (TPOT, 10.136)
    assert row.source.endswith(", one")
    assert row.error_leave_one_out != row.error


def test_what_cannot_be_predicted_is_counted_by_reason(tmp_path: Path) -> None:
    found = load_section(
        points(
            tmp_path / "points.csv",
            ROW,
            ROW.replace("meta-llama/Llama-3.1-70B", "mystery/Mystery-MoE"),
            ROW.replace("h200_sxm", "tpu"),
            ROW.replace("h200_sxm", "tpu"),
            ROW.replace("vllm", "tgi"),
        )
    )
    assert len(found.rows) == 1
    assert sorted(found.skipped.values()) == [1, 1, 2]
    for word in ("mystery", "tpu", "tgi"):
        assert sum(word in reason for reason in found.skipped) == 1


@pytest.mark.parametrize(
    ("repository", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
    ],
)
def test_repositories_are_known_by_their_base_model(repository: str, model: str, tmp_path: Path) -> None:
    (row,) = load_section(points(tmp_path / "one.csv", ROW.replace("meta-llama/Llama-3.1-70B", repository))).rows
    assert row.name.startswith(f"{model} ")


def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    bad = points(tmp_path / "points.csv", ROW, ROW.replace(",4,8,1024", ",4,8,many"))
    with pytest.raises(ValueError, match=r"points.csv, line 3: .*'many'"):
        load_section(bad)


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    bad = points(tmp_path / "points.csv", "1,2", header="model,device")
    with pytest.raises(ValueError, match=r"points.csv.*concurrency"):
        load_section(bad)


def test_every_fitted_constant_is_listed_with_its_data() -> None:
    constants = load_constants()
    assert all(constant.fitted_on for constant in constants)
    names = {constant.name for constant in constants}
    assert len(names) == len(constants)
    assert {"gemm_floor_s", "host_vllm_s", "layer_s, vllm"} <= names
    assumed = [(one.engine, name) for sets in fitted_sets().values() for one in sets for name in one.assumed]
    assert not {f"{name}, {engine}" for engine, name in assumed} & names


def test_a_row_of_a_sparse_model_is_told_from_a_dense_one(sparse_points: Section, serving: Section) -> None:
    rows: list[Row] = [*sparse_points.rows, *serving.rows]
    assert all((row.quantity == SPARSE_TPOT) == (not row.name.startswith("llama")) for row in rows)


def test_predictions_of_loads_need_no_torch() -> None:
    code = "import sys, swiftspec.studies.backtest.loads, swiftspec.cli.validate; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
