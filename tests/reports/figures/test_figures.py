"""Rules that every figure follows."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from swiftspec.reports.figures import (
    acceptance_by_rank,
    heat_map,
    predicted_vs_measured,
    render,
    shared_steps,
    step_latency,
    timeline_rounds,
)
from swiftspec.reports.figures.style import new_figure
from tests.builders import machine_profile
from tests.cli.samples import parallel_timeline, serial_timeline, trace
from tests.reports.figures.samples import report
from tests.reports.html.samples import rich_plan

pytestmark = pytest.mark.extra("plots")

FIGURES = {
    "acceptance": lambda: acceptance_by_rank(trace()),
    "latency": lambda: step_latency(machine_profile()),
    "report": lambda: predicted_vs_measured(report()),
    "splits": lambda: heat_map(rich_plan()),
    "serial": lambda: timeline_rounds(serial_timeline()),
    "load": lambda: shared_steps([serial_timeline(), parallel_timeline(num_rounds=30)]),
    "parallel": lambda: timeline_rounds(parallel_timeline(num_rounds=30)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figure_renders(name: str) -> None:
    assert render(FIGURES[name](), "svg").startswith(b"<?xml")


@pytest.mark.parametrize(("file_format", "signature"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_formats_are_those_asked_for(file_format: str, signature: bytes) -> None:
    assert render(FIGURES["acceptance"](), file_format).startswith(signature)


@pytest.mark.parametrize("name", FIGURES)
def test_every_value_axis_names_its_unit_or_quantity(name: str) -> None:
    figure: Figure = FIGURES[name]()
    for axes in figure.axes:
        assert axes.get_xlabel() or [label.get_text() for label in axes.get_xticklabels()]
        assert axes.get_ylabel() or [label.get_text() for label in axes.get_yticklabels()]


def test_only_requests_that_decode_can_share_steps() -> None:
    with pytest.raises(ValueError, match="timelines has none with a verification"):
        shared_steps([])


def test_pictures_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    render(FIGURES["report"](), "png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_the_same_figure_is_the_same_bytes(file_format: str) -> None:
    def drawn() -> bytes:
        figure, axes = new_figure()
        axes.plot([0, 1], [1, 0], label="line")
        axes.legend()
        return render(figure, file_format)

    assert drawn() == drawn()
