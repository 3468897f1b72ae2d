"""In a pipe, no line that a verb prints is longer than 100 columns, and nothing is cut, however long names are."""

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.report import Report
from swiftspec.cli.app import main
from swiftspec.cli.drafts import show_drafts
from swiftspec.cli.profile import show_ops, show_profile
from swiftspec.cli.sections import show_plan
from swiftspec.cli.table_layout import lay_out
from swiftspec.cli.trace import show_trace
from swiftspec.cli.validate import show_report
from swiftspec.cli.workload import show_workload
from swiftspec.files.document import ModelRef
from swiftspec.profiler.op_benchmark import LIMITS, OpRow
from swiftspec.profiler.op_timer import Timing
from swiftspec.studies.backtest.command import show_backtest
from swiftspec.studies.backtest.rows import Backtest, Constant, Row, Section
from tests.cli.test_console import Terminal
from tests.cli.test_show_plan import crowded
from tests.workload.samples import replayed, workload

pytestmark = pytest.mark.extra("engine")

PROFILES = Path(__file__).parents[2] / "swiftspec" / "profiles"
WIDTH = 100
NAME = "a-model-with-as-long-a-name-as-names-are-70b-instruct-v0.12x"
PATH = "/srv/models/of-many-people/" + "/".join([NAME, "snapshots", "f" * 40])
LONG = ModelRef(model=PATH, inflate="layers=48,hidden=1024,intermediate=4096", dtype="bfloat16")


def recorded(name: str = "demo-sapphire-rapids-2-cores") -> Planned:
    """A recorded plan of models with long paths."""
    planned = Planned.load(PROFILES / name / "plan.json")
    models = {"target": LONG, "draft": LONG}
    return Planned(
        plan=planned.plan.model_copy(update=models),
        profile=planned.profile.model_copy(update=models),
        trace=dataclasses.replace(planned.trace, target=LONG, draft=LONG),
    )


def report() -> Report:
    return Report.load(PROFILES / "demo-sapphire-rapids-2-cores" / "report.json")


def backtested() -> Backtest:
    row = Row(
        name=f"{NAME} with {NAME}, 8 H800, humaneval",
        quantity="tokens/s of one user",
        published=123.4,
        predicted=120.1,
        error_leave_one_out=-0.03,
        source="SwiftSpec (ASPLOS'26, arXiv 2506.11309), figure 12, read off the plot to a pixel",
    )
    constant = Constant(name="time around a forward of " + NAME, fitted_on="all " * 30, value=1.5, unit="ms per layer")
    section = Section(title=f"{NAME}: forwards", rows=(row,), constants=(constant,), skipped={"they are too long": 3})
    return Backtest(sections=(section,))


def op_row() -> OpRow:
    timing = Timing(median_s=12e-6, low_s=11e-6, high_s=13e-6, num_samples=9)
    sizes = {"rows": 32, "n": 28672, "k": 8192}
    return OpRow(op=LIMITS[0], sizes=sizes, dtype="float8_e4m3fn", timing=timing, num_bytes=1 << 20)


def plan_verb() -> None:
    show_plan(recorded().plan)
    show_plan(crowded())
    show_drafts({NAME: recorded(), PATH: recorded(), "small": ValueError(f"{NAME} and more " * 9)})


def profile_verb() -> None:
    for name in ("demo-sapphire-rapids-2-cores", "demo-zen4-2-ranks"):
        show_profile(recorded(name).profile)
    show_ops([op_row()])


def workload_verb() -> None:
    show_workload(workload())
    show_workload(replayed())


VERBS: Mapping[str, Callable[[], object]] = {
    "plan": plan_verb,
    "validate": lambda: show_report(report(), recorded().plan),
    "backtest": lambda: show_backtest(backtested()),
    "models": lambda: main(["list", "models"]),
    "devices": lambda: main(["list", "devices"]),
    "engines": lambda: main(["list", "engines"]),
    "profile": profile_verb,
    "trace": lambda: show_trace(recorded().trace),
    "simulate": lambda: main(["simulate", "--plan", str(PROFILES / "demo-sapphire-rapids-2-cores" / "plan.json")]),
    "workload": workload_verb,
}


def too_long(lines: Sequence[str], width: int) -> list[str]:
    """Lines over the width, but for a path with no more than its indentation or a label before it."""
    return [line for line in lines if len(line) > width and (PATH not in line or len(line) - len(PATH) > 16)]


@pytest.fixture
def pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> pytest.CaptureFixture[str]:
    monkeypatch.setenv("COLUMNS", "300")  # of no terminal
    return capsys


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_is_longer_than_a_hundred_columns(verb: str, pipe: pytest.CaptureFixture[str]) -> None:
    VERBS[verb]()
    lines = pipe.readouterr().out.splitlines()
    assert len(lines) > 3
    assert too_long(lines, WIDTH) == []


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_lost_for_want_of_room(
    verb: str, pipe: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = []
    for width in (1000, 80):
        monkeypatch.setattr("swiftspec.cli.console._PIPE_COLUMNS", width)
        VERBS[verb]()
        words.append(sorted(re.split(r"\s+", pipe.readouterr().out)))
    assert words[0] == words[1]


@pytest.mark.parametrize("verb", VERBS)
def test_eighty_columns_of_a_terminal_are_enough(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    VERBS[verb]()
    lines = re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert too_long(lines, 80) == []


def test_a_path_stays_whole(pipe: pytest.CaptureFixture[str]) -> None:
    VERBS["plan"]()
    assert PATH in pipe.readouterr().out


HEADER = ("model", "tokens/s at most", "note")
TEXT = frozenset({0, 2})


def test_a_table_that_fits_is_in_one_line_a_row() -> None:
    head, row = lay_out(HEADER, [("small", "1.5", "fine")], text_columns=TEXT, width=40)
    assert head == ["  model  tokens/s at most  note"]
    assert row == ["  small               1.5  fine"]


def test_text_is_wrapped_beside_numbers() -> None:
    head, row = lay_out(HEADER, [("small", "1.5", "as good as it gets on this machine")], text_columns=TEXT, width=40)
    assert head == ["  model  tokens/s  note", "          at most"]
    assert row == ["  small       1.5  as good as it gets on", "                   this machine"]


def test_what_cannot_be_wrapped_stands_above_its_row() -> None:
    name = "n" * 38
    _, row, other = lay_out(HEADER, [(name, "1.5", "fine"), ("small", "2.5", "fine")], text_columns=TEXT, width=40)
    assert row == [f"  {name}", f"  {'':22}  {'1.5':>8}  fine"]
    assert other == [f"  {'small':22}  {'2.5':>8}  fine"]


def test_numbers_stand_below_the_text_where_there_is_no_room_beside() -> None:
    header = ("model", *("number",) * 4)
    head, row = lay_out(header, [("n" * 20, "1", "2", "3", "4")], text_columns={0}, width=40)
    assert head == ["  model", "    number  number  number  number"]
    assert row == [f"  {'n' * 20}", "         1       2       3       4"]
