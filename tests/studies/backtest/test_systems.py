from statistics import median

import pytest

from swiftspec.studies.backtest.rows import Row
from swiftspec.studies.backtest.swiftspec_paper import paper_constants, paper_rows, split_speeds
from swiftspec.studies.backtest.systems import published_systems


@pytest.fixture(scope="module")
def rows(systems: list[Row]) -> dict[str, Row]:
    return {row.name: row for row in systems}


@pytest.fixture(scope="module")
def paper() -> dict[str, Row]:
    return {row.name: row for row in paper_rows()}


def test_published_speeds_come_out_without_a_constant_of_their_own(rows: dict[str, Row]) -> None:
    assert len(rows) == 29
    assert median(abs(row.error) for row in rows.values()) < 0.05
    assert max(abs(row.error) for row in rows.values()) < 0.2


def test_row_that_is_an_input_is_no_row(rows: dict[str, Row]) -> None:
    inputs = [machine["name"] for machine in published_systems()["vllm"]["machines"] if machine["as_input"]]
    assert inputs
    assert not [name for name in rows if "autoregressive" in name and any(machine in name for machine in inputs)]


def test_headline_is_predicted_within_15_percent(paper: dict[str, Row]) -> None:
    assert abs(paper["llama-3-70b + llama-3.2-3b, SwiftSpec 4+4"].error) < 0.15


def test_both_arms_of_table_7_are_predicted(paper: dict[str, Row]) -> None:
    arms = [row for name, row in paper.items() if name.startswith("qwen2-72b + qwen2-1.5b, ") and "split" not in name]
    assert len(arms) == 3
    assert max(abs(row.error) for row in arms) < 0.05


def test_published_splits_are_the_best_ones_or_nearly_for_four_families_of_five(paper: dict[str, Row]) -> None:
    shares = [row.predicted for row in paper.values() if row.quantity == "share of the best"]
    assert len(shares) == 5
    assert sum(share > 0.97 for share in shares) >= 4


def test_splits_differ() -> None:
    speeds = split_speeds(published_systems()["swiftspec"]["families"][0])
    assert min(speeds.values()) < 0.8 * max(speeds.values())


def test_every_constant_says_what_it_was_fitted_on() -> None:
    assert all(constant.fitted_on and constant.value >= 0 for constant in paper_constants())


def test_forwards_are_predicted_by_the_fit_to_the_others(paper: dict[str, Row]) -> None:
    forwards = [row for row in paper.values() if row.quantity == "forward, ms"]
    assert len(forwards) == 20
    assert any(row.error_leave_one_out != row.error for row in forwards)
    assert max(abs(row.error_leave_one_out or 0.0) for row in forwards) < 0.15


def test_kernels_are_predicted_by_the_fit_to_the_others(paper: dict[str, Row]) -> None:
    left_out = [row.error_leave_one_out for row in paper.values() if row.quantity == "kernel, us"]
    assert len(left_out) == 25
    assert median(abs(error) for error in left_out if error is not None) < 0.09
    assert max(abs(error) for error in left_out if error is not None) < 0.18
