import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from swiftspec.reports.figures import acceptance_by_rank, step_latency, timeline_rounds
from tests.builders import machine_profile
from tests.cli.samples import parallel_timeline, trace

pytestmark = pytest.mark.extra("plots")


def test_acceptance_bars_are_shares_of_tokens() -> None:
    (axes,) = acceptance_by_rank(trace(ranks=(0, 0, 1, 0)), num_ranks=3).axes
    assert [bar.get_height() for bar in axes.containers[0]] == [75.0, 25.0, 0.0]
    assert list(np.asarray(axes.lines[0].get_ydata())) == [75.0, 100.0, 100.0]


def test_latency_has_a_line_per_phase_degree_and_peer_state() -> None:
    (axes,) = step_latency(machine_profile(num_devices=2)).axes
    assert len(axes.lines) == 2 * 2 * 2
    assert "expand, 2 devices, peer busy" in {line.get_label() for line in axes.lines}


@pytest.mark.parametrize(("num_rounds", "expected_ms"), [(30, 1000.0), (4, 395.0)])
def test_timeline_shows_ten_rounds_or_all(num_rounds: int, expected_ms: float) -> None:
    (axes,) = timeline_rounds(parallel_timeline(num_rounds=num_rounds)).axes
    assert axes.get_xlim() == pytest.approx((0.0, expected_ms))
    bars = [bar.get_paths()[0].get_extents() for bar in axes.collections if isinstance(bar, PolyCollection)]
    assert min(bar.x0 for bar in bars) >= -1e-6
    assert max(bar.x1 for bar in bars) <= expected_ms + 1e-6
