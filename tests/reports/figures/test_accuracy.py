import pytest
from matplotlib.axes import Axes

from swiftspec.reports.figures import predicted_vs_measured
from tests.reports.figures.samples import report

pytestmark = pytest.mark.extra("plots")


def heights(axes: Axes) -> list[float]:
    return [bar.get_height() for container in axes.containers for bar in container]


def test_predicted_and_measured_bars_stand_side_by_side() -> None:
    speeds, rounds, tokens = predicted_vs_measured(report()).axes
    assert heights(speeds) == pytest.approx([120.0, 50.0, 16.0, 4.0])
    assert heights(rounds) == pytest.approx([20.0, 20.0, 100.0, 400.0])
    assert heights(tokens) == pytest.approx([2.5, 2.5, 2.0, 2.0])
