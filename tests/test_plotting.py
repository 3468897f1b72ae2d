from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from swiftspec.plotting import acceptance_by_rank, predicted_vs_measured, render, step_latency, timeline_rounds
from swiftspec.report import Report
from swiftspec.validator import Measurement, make_report
from tests.cli.samples import ORIGIN, parallel_timeline, plan, serial_timeline, trace
from tests.simulator.builders import machine_profile


def report() -> Report:
    measurements = [
        Measurement(policy=policy, repeats=((serial_timeline(round_s=round_s),),), outputs=((1,),))
        for policy, round_s in (("swiftspec", 0.1), ("autoregressive", 0.4))
    ]
    return make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN)


def heights(axes: Axes) -> list[float]:
    return [bar.get_height() for container in axes.containers for bar in container]


FIGURES = {
    "acceptance": lambda: acceptance_by_rank(trace()),
    "latency": lambda: step_latency(machine_profile()),
    "report": lambda: predicted_vs_measured(report()),
    "serial": lambda: timeline_rounds(serial_timeline()),
    "parallel": lambda: timeline_rounds(parallel_timeline(num_rounds=30)),
}


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(("file_format", "signature"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figure_renders(name: str, file_format: str, signature: bytes) -> None:
    assert render(FIGURES[name](), file_format).startswith(signature)


@pytest.mark.parametrize("name", FIGURES)
def test_every_value_axis_names_its_unit_or_quantity(name: str) -> None:
    figure: Figure = FIGURES[name]()
    for axes in figure.axes:
        assert axes.get_xlabel() or [label.get_text() for label in axes.get_xticklabels()]
        assert axes.get_ylabel() or [label.get_text() for label in axes.get_yticklabels()]


def test_acceptance_bars_are_shares_of_tokens() -> None:
    (axes,) = acceptance_by_rank(trace(ranks=(0, 0, 1, 0)), num_ranks=3).axes
    assert heights(axes) == [75.0, 25.0, 0.0]
    assert list(np.asarray(axes.lines[0].get_ydata())) == [75.0, 100.0, 100.0]


def test_latency_has_a_line_per_phase_degree_and_peer_state() -> None:
    (axes,) = step_latency(machine_profile(num_devices=2)).axes
    assert len(axes.lines) == 2 * 2 * 2
    assert "expand, 2 devices, peer busy" in {line.get_label() for line in axes.lines}


def test_predicted_and_measured_bars_stand_side_by_side() -> None:
    speeds, rounds, tokens = predicted_vs_measured(report()).axes
    assert heights(speeds) == pytest.approx([120.0, 50.0, 16.0, 4.0])
    assert heights(rounds) == pytest.approx([20.0, 20.0, 100.0, 400.0])
    assert heights(tokens) == pytest.approx([2.5, 2.5, 2.0, 2.0])


@pytest.mark.parametrize(("num_rounds", "expected_ms"), [(30, 1000.0), (4, 395.0)])
def test_timeline_shows_ten_rounds_or_all(num_rounds: int, expected_ms: float) -> None:
    (axes,) = timeline_rounds(parallel_timeline(num_rounds=num_rounds)).axes
    assert axes.get_xlim() == pytest.approx((0.0, expected_ms))
    bars = [bar.get_paths()[0].get_extents() for bar in axes.collections if isinstance(bar, PolyCollection)]
    assert min(bar.x0 for bar in bars) >= -1e-6
    assert max(bar.x1 for bar in bars) <= expected_ms + 1e-6


def test_pictures_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    render(FIGURES["report"](), "png")
    assert list(tmp_path.iterdir()) == []
