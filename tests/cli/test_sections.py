"""The terminal prints what the page shows: the same sections, sentences, titles and figures."""

from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.sections import show, show_plan
from swiftspec.reports.html import render
from swiftspec.reports.model import Bar, Curves, Doubt, Facts, Row, Section, Table, numbers, texts
from swiftspec.reports.plan import plan_sections
from tests.reports.html.samples import composed_profile, rich_plan
from tests.reports.html.test_page import words

RECORDED = Path(__file__).parents[2] / "swiftspec/profiles/demo-zen4-2-cores/plan.json"
PLANS = {"composed": rich_plan, "measured": lambda: Plan.load(RECORDED)}


def said(section: Section) -> list[str]:
    """Sentences, titles, figures and footnotes of a section, as far as the terminal shows them."""
    found: list[str] = []
    for part in section.parts:
        if isinstance(part, str | Doubt | Bar):
            found.append(part if isinstance(part, str) else part.title)
        elif isinstance(part, Table):
            found += [part.title, part.footnote, *(str(cell) for row in part.rows[:8] for cell in row.cells)]
    return found


@pytest.mark.parametrize("name", PLANS)
def test_terminal_and_page_say_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = PLANS[name]()
    show_plan(plan)
    printed = set(capsys.readouterr().out.split())
    page = words(render(plan, profile=composed_profile(), timeline=None))
    for section in plan_sections(plan):
        if section.key != "splits":
            assert {word for text in said(section) for word in text.split()} <= printed
            assert [text for text in said(section) if text not in page] == []


def test_a_section_without_a_table_may_have_its_title_above(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title="Speeds", columns=(*texts("name"), *numbers("tokens/s")), rows=[Row(("ssd", "9.0"), "K=4")])
    sections = [
        Section(key="speeds", title="All speeds", parts=[table]),
        Section(key="best", title="The best", parts=["It is ssd.", Facts({"not": "printed"})]),
    ]
    show(sections, headings=True)
    assert capsys.readouterr().out.splitlines() == [
        *("", "Speeds", "  name  tokens/s", "  ssd        9.0", "    K=4"),
        *("", "== The best ==", "It is ssd."),
    ]


def test_of_charts_only_bars_are_put_into_words(capsys: pytest.CaptureFixture[str]) -> None:
    chart = Curves(curves=(), x_title="devices", y_title="speed", label="speed over devices")
    show([Section(key="any", title="Any", parts=["First.", Bar(title="a 1, b 3", segments=()), chart])])
    assert capsys.readouterr().out.splitlines() == ["First.", "a 1, b 3"]
