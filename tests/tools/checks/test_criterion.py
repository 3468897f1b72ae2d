"""Verdicts on figures: limits, the worst of several, and what was not measured."""

import math

import pytest

from tools.checks.criterion import Criterion, at_least, at_most, below


@pytest.mark.parametrize(
    ("criterion", "held"),
    [
        (at_most("x", 5.0, 5), True),
        (at_most("x", 5.1, 5), False),
        (at_least("x", 5.0, 5), True),
        (at_least("x", 4.9, 5), False),
        (below("x", 4.9, 5), True),
        (below("x", 5.0, 5), False),
        (at_most("x", math.nan, 5), False),
        (at_least("x", math.nan, 5), False),
        (below("x", math.nan, 5), False),
        (at_most("x", [], 5), None),
    ],
    ids=str,
)
def test_a_figure_is_judged_by_its_limit(criterion: Criterion, held: bool | None) -> None:
    assert criterion.held is held


def test_the_worst_of_several_figures_decides() -> None:
    figures = [("a", 1.0), ("b", 3.0), ("c", 2.0)]
    assert [(each.where, each.found) for each in (at_most("x", figures, 5), at_least("x", figures, 0))] == [
        ("b", 3.0),
        ("a", 1.0),
    ]
    unknown = at_most("x", [*figures, ("d", math.nan)], 5)
    assert (unknown.where, unknown.found, unknown.held) == ("d", None, False)


def test_the_printed_line_has_the_figure_its_unit_and_the_limit() -> None:
    assert str(at_most("refused within, p99", 12.04, 50, "ms")) == "held: refused within, p99: 12.04 ms, at most 50 ms"
    assert str(at_least("share", [("8B", 0.7)], 0.75)) == "missed: share: 0.7 (8B), at least 0.75"
    assert str(at_most("outputs that differ", [], 0)) == "unknown: outputs that differ: -, at most 0"
