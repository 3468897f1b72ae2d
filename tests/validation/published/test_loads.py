"""Published loads, each predicted with constants that were fitted without its model."""

from statistics import median

import pytest

from swiftspec.engines import engine_named
from swiftspec.validation.published import DATA
from swiftspec.validation.published.comparison import Comparison, LeaveOut, frozen
from swiftspec.validation.published.loads import compare_loads


@pytest.fixture(scope="module")
def stages() -> Comparison:
    return compare_loads(DATA / "vllm_serving.csv", engine=engine_named("vllm@0.15.1"), leave_out=LeaveOut.MODEL)


@pytest.fixture(scope="module")
def closed_loops() -> Comparison:
    return compare_loads(DATA / "inferencex_serving.csv", leave_out=LeaveOut.MODEL)


def errors(comparison: Comparison, name: str) -> list[float]:
    return sorted(
        abs(figure.error)
        for index, row in enumerate(comparison.rows)
        for figure in row.figures
        if figure.name == name and index not in comparison.failed
    )


def test_stages_of_vllm_are_right_on_models_that_were_left_out(stages: Comparison) -> None:
    e2e = errors(stages, "e2e_mean_ms")
    assert len(e2e) == 20
    assert median(e2e) <= 0.06
    assert e2e[-1] <= 0.18
    assert median(errors(stages, "ttft_p50_ms")) <= 0.12
    assert median(errors(stages, "ttft_mean_ms")) <= 0.20
    assert median(errors(stages, "e2e_p99_ms")) <= 0.10


def test_closed_loops_are_right_on_models_that_were_left_out(closed_loops: Comparison) -> None:
    planned = [
        row
        for row in closed_loops.rows
        if row.cells["spec"] == "none" and not (row.cells["precision"] == "fp4" and "DeepSeek" in row.cells["model"])
    ]
    comparison = Comparison(rows=tuple(planned), leave_out=LeaveOut.MODEL)
    for name in ("tpot_mean_ms", "e2e_mean_ms"):
        found = errors(comparison, name)
        assert len(found) == 306
        assert median(found) <= 0.05
        assert found[round(0.9 * len(found))] <= 0.15
    assert median(errors(comparison, "ttft_p50_ms")) <= 0.20


def test_overloaded_stages_are_recognised_and_no_others(stages: Comparison) -> None:
    assert {index for index, row in enumerate(stages.rows) if row.overloaded} == set(stages.failed)
    assert len(stages.failed) == 4


def test_intervals_hold_what_was_measured(stages: Comparison, closed_loops: Comparison) -> None:
    for comparison in (stages, closed_loops):
        inside = comparison.summary()["errors"]["all"]["e2e_mean_ms"]["inside_90_percent_interval"]
        assert inside >= 0.75


def test_frozen_predictions_hold_no_measurement(stages: Comparison) -> None:
    found = frozen(stages)
    assert len(found["sha256"]) == 64
    for row in found["predictions"]:
        times = [name for name in row if name.endswith("_ms")]
        assert all(name.startswith(("predicted_", "low_", "high_")) for name in times)
        assert "failed" not in row
    assert found == frozen(stages)
