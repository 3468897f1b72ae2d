"""Times of a GEMM by rows."""

import pytest

from swiftspec.costmodel.kernel_latency import KernelTime
from swiftspec.costmodel.measured import RowCurve
from swiftspec.timing.latency import Provenance


def _curve(times: dict[int, float]) -> RowCurve:
    return RowCurve.padded([(rows, KernelTime(seconds, Provenance.MEASURED)) for rows, seconds in times.items()])


def test_a_slow_row_costs_what_more_rows_do() -> None:
    curve = _curve({1: 17.0, 2: 13.0, 4: 10.5, 8: 10.0, 16: 11.0})
    assert [curve.at(rows).seconds for rows in (1, 2, 4, 8, 16)] == [10.0, 10.0, 10.0, 10.0, 11.0]


def test_rows_are_padded_to_the_next_graph() -> None:
    curve = _curve({1: 1.0, 2: 2.0, 4: 4.0})
    assert curve.at(3) == KernelTime(4.0, Provenance.MEASURED)


def test_row_counts_that_no_graph_has_are_not_compared() -> None:
    assert _curve({1: 10.0, 3: 9.0, 4: 10.0}).at(1).seconds == 10.0


def test_without_a_power_of_two_every_number_of_rows_counts() -> None:
    assert _curve({3: 10.0, 5: 9.0, 7: 12.0}).at(1).seconds == 9.0


def test_a_prompt_is_not_padded() -> None:
    curve = _curve({256: 1.0, 1024: 4.0})
    seconds, provenance = curve.at(512)
    assert seconds == pytest.approx(2.0)
    assert provenance is Provenance.INTERPOLATED


def test_behind_the_last_knot_its_time_stands() -> None:
    assert _curve({1: 1.0, 2: 2.0}).at(64).seconds == 2.0
