import numpy as np
import pytest

from swiftspec.studies.backtest.rows import Row
from tests.studies.backtest.conftest import Found


@pytest.fixture(scope="module")
def rows(acceptance: Found) -> list[Row]:
    return acceptance[0]


def errors(rows: list[Row], part: str) -> list[float]:
    return [abs(row.error) for row in rows if part in row.name]


def test_chains_follow_from_a_shorter_or_longer_one(rows: list[Row]) -> None:
    chains = errors(rows, "chain of")
    assert len(chains) == 40
    assert np.median(chains) < 0.01
    assert max(chains) < 0.03


def test_asynchronous_trees_follow_from_serial_ones(rows: list[Row]) -> None:
    trees = errors(rows, "asynchronous tree")
    assert len(trees) == 6
    assert np.mean(trees) <= 0.05


def test_trees_of_candidates_follow_from_ranks(rows: list[Row]) -> None:
    wide = [error for width in range(2, 6) for error in errors(rows, f"tree of width {width}")]
    assert len(wide) == 20
    assert np.median(wide) < 0.03
    assert max(wide) < 0.06
    assert max(errors(rows, "tree of width 1")) < 0.2


def test_static_trees_follow_from_chains_from_the_root(rows: list[Row]) -> None:
    static = errors(rows, "static tree")
    assert len(static) == 3
    assert max(static) < 0.08


def test_rows_and_constants_say_where_they_are_from(acceptance: Found) -> None:
    rows, constants = acceptance
    assert all(row.source and row.quantity for row in rows)
    assert len({row.name for row in rows}) == len(rows)
    assert all(constant.fitted_on for constant in constants)
