"""Speeds of heads and parallel drafts."""

from statistics import median

import pytest

from swiftspec.studies.backtest.head_speeds import head_speed_rows
from swiftspec.studies.backtest.rows import Row
from tests.studies.backtest.conftest import Found


@pytest.fixture(scope="module")
def found() -> Found:
    return head_speed_rows()


@pytest.fixture(scope="module")
def chains(found: Found) -> list[Row]:
    """Those of EAGLE-3 in vLLM, of 2 to 7 tokens."""
    return [row for row in found[0] if "chain of" in row.name]


def test_speeds_that_were_solved_for_are_no_rows(found: Found) -> None:
    rows, constants = found
    assert len(constants) == 2
    solved = [row for row in rows if "pard" in row.name and "A100" in row.name and "HumanEval" not in row.name]
    assert not solved
    assert all(1 < constant.value < 9 for constant in constants)


def test_parallel_drafts_block_drafters_and_trees_are_within_12_percent(found: Found) -> None:
    others = [abs(row.error) for row in found[0] if "chain of" not in row.name]
    assert len(others) == 9
    assert median(others) < 0.08
    assert max(others) < 0.12


def test_chains_of_a_head_are_all_too_fast_by_about_the_same_part(chains: list[Row]) -> None:
    """What vLLM adds to a round and to a draft forward is in no table; the order of the lengths does not need it."""
    errors = [row.error for row in chains]
    assert len(errors) == 6
    assert min(errors) > 0.1
    assert max(errors) < 0.25
    assert max(errors) - min(errors) < 0.08


def test_the_best_chain_of_a_head_is_predicted(chains: list[Row]) -> None:
    best = max(chains, key=lambda row: row.predicted)
    assert best.published > 0.98 * max(row.published for row in chains)
