"""The comparison of searches, on figures that are known."""

import pytest

from swiftspec.planner.plan import Search
from tools.checks.searches import Found, regrets


def found(search: Search, seed: int, chosen: float, serial: float) -> Found:
    return Found(search, seed, 1.0, 10, {None: chosen, "serial_tree": serial}, "serial_tree 2")


def test_regret_is_the_share_of_speed_behind_the_best_that_any_search_found() -> None:
    every = [
        found(Search.FULL, 1, 100.0, 80.0),
        found(Search.QUICK, 1, 90.0, 80.0),
        found(Search.FULL, 2, 98.0, 60.0),
        found(Search.QUICK, 2, 100.0, 40.0),
    ]
    by_search = regrets(every)
    assert by_search[Search.FULL][None] == pytest.approx([0.0, 0.02])
    assert by_search[Search.QUICK][None] == pytest.approx([0.1, 0.0])
    assert by_search[Search.FULL]["serial_tree"] == pytest.approx([0.0, 0.25])
    assert by_search[Search.QUICK]["serial_tree"] == pytest.approx([0.0, 0.5])
