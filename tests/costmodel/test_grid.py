"""Interpolation on a grid with gaps."""

import math

import numpy as np
import pytest

from swiftspec.costmodel.grid import Grid


def _grid() -> Grid:
    points = [(rows, n) for rows in (1, 8, 64) for n in (256, 1024)]
    return Grid(points, [rows**0.5 * n for rows, n in points])


def test_a_measured_point_is_returned_as_it_is() -> None:
    found = _grid().at(8, 1024)
    assert found.value == 8**0.5 * 1024
    assert found.exact


def test_between_points_a_power_law_is_met_exactly() -> None:
    found = _grid().at(20, 600)
    assert found.value == pytest.approx(20**0.5 * 600)
    assert not found.exact


def test_beyond_the_ends_the_last_value_holds() -> None:
    found = _grid().at(8, 4096)
    assert found[:2] == (8**0.5 * 1024, False)


def test_a_gap_is_filled_by_the_neighbours_that_there_are() -> None:
    points = [(1, 1), (1, 4), (4, 1)]
    found = Grid(points, [2.0, 8.0, 2.0]).at(2, 2)
    assert found.value == pytest.approx(math.exp((2 * math.log(2) + math.log(8)) / 3))


def test_where_all_neighbours_are_missing_the_nearest_point_answers() -> None:
    assert Grid([(1, 1), (100, 100)], [3.0, 7.0]).at(100, 1).value in (3.0, 7.0)


def test_a_spike_is_replaced_and_no_longer_measured() -> None:
    grid = Grid([[x] for x in (1, 2, 4, 8)], [1.0, 1.1, 9.0, 1.3], smooth_axis=0)
    found = grid.at(4)
    assert found.value == pytest.approx(np.sqrt(1.1 * 1.3))
    assert not found.exact


def test_a_step_is_no_spike() -> None:
    grid = Grid([[x] for x in (1, 2, 4, 8)], [1.0, 1.0, 3.0, 3.0], smooth_axis=0)
    assert grid.at(4)[:2] == (3.0, True)


def test_values_that_fall_along_an_axis_count_for_the_least_behind_them_and_gaps_stay() -> None:
    points = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 4)]
    grid = Grid(points, [5.0, 2.0, 3.0, 1.0, 4.0], rising_axis=1)
    assert [grid.at(1, x).value for x in (1, 2, 4)] == [2.0, 2.0, 3.0]
    assert [grid.at(2, x).value for x in (1, 4)] == [1.0, 4.0]
    assert grid.at(2, 2).borrowed
