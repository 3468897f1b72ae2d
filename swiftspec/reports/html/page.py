"""The report of a plan: one HTML file that needs nothing else, from a Plan, its Profile and a simulated timeline."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import groupby

from swiftspec.artifacts.advice import Advice
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.reports.advice import advice_sections
from swiftspec.reports.basis import references
from swiftspec.reports.html.charts import bar, curves, interval, scrolling, swatch, timeline_tracks
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.reports.model import (
    Bar,
    Cell,
    Column,
    Command,
    Curves,
    Doubt,
    Facts,
    HeatCell,
    Interval,
    Part,
    Row,
    Section,
    Segment,
    Source,
    Table,
    Tracks,
)
from swiftspec.reports.plan import plan_sections
from swiftspec.timing.timeline import Timeline

_NUM_LEVELS = 6  # colours of cells
_LONG_TITLE = 8


def render(plan: Plan, *, profile: Profile, timeline: Timeline | None) -> str:
    """The report as the text of an HTML file; the same inputs give the same text.

    profile: the one that the plan was made from. timeline: a simulated request of the chosen candidate; without one,
    the sections about a round's time are left out.
    """
    answer, *sections = plan_sections(plan, profile=profile, timeline=timeline)
    where = f"{plan.num_devices} \N{MULTIPLICATION SIGN} {plan.device}" if plan.num_devices > 1 else plan.device
    if plan.draft_devices:
        where += f", and {plan.draft_devices} \N{MULTIPLICATION SIGN} {plan.draft_device} for the draft"
    header = _header(answer, f"{plan.models}, on {where}")
    return _page(f"{plan.models} on {where}", header, sections, _references(references(plan, profile)))


def render_advice(advice: Advice) -> str:
    """Advice for a server that runs, as the text of an HTML file."""
    answer, *sections = advice_sections(advice)
    header = _header(answer, f"{advice.server}, {advice.origin.created_utc}")
    return _page(f"Advice for {advice.server}", header, sections)


def _page(title: str, header: Markup, sections: Sequence[Section], *rest: Markup) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(files("swiftspec.reports.html").joinpath("report.css").read_text(encoding="utf-8"))),
    )
    main = element("main", header, *map(_section, sections), *rest)
    return "<!DOCTYPE html>\n" + element("html", head, element("body", main), lang="en") + "\n"


def _header(answer: Section, subject: str) -> Markup:
    """The answer as the page's title, with what to doubt and the figures that explain it."""
    rest = element("span", f"{answer.caption} ", _cite(answer.sources), class_="rest")
    return element(
        "header",
        element("p", subject, class_="eyebrow"),
        element("h1", answer.title, " ", rest),
        *(_facts(part, class_="key-figures") if isinstance(part, Facts) else _part(part) for part in answer.parts),
    )


def _section(section: Section) -> Markup:
    heading = element("h2", section.title, " ", _cite(section.sources), id=f"{section.key}-title")
    caption = [element("p", section.caption, class_="quiet")] if section.caption else []
    body: list[Markup] = []
    for is_bar, parts in groupby(section.parts, key=lambda part: isinstance(part, Bar)):
        drawn = map(_part, parts)
        body += [element("div", *drawn, class_="processes")] if is_bar else drawn
    return element("section", heading, *caption, *body, id=section.key, aria_labelledby=f"{section.key}-title")


def _part(part: Part) -> Markup:
    match part:
        case str():
            return element("p", part)
        case Doubt():
            more = [" ", element("a", "What it rests on", href=f"#{part.see}")] if part.see else []
            return element("p", part.title, *more, class_="warning", role="note")
        case Command():
            return element("pre", element("code", part.text))
        case Facts():
            return _facts(part, class_="facts")
        case Table():
            return _captioned(_table(part), part.title, footnote=part.footnote)
        case Bar():
            title = element("h3", part.title)
            table = [] if part.table is None else [_captioned(_table(part.table), part.table.title, titled=True)]
            return element("div", title, bar(part), *table, class_="process")
        case Curves():
            return curves(part)
        case Tracks():
            return timeline_tracks(part)


def _facts(facts: Facts, *, class_: str) -> Markup:
    values = (
        element("div", element("dt", term), element("dd", value, title=facts.tip or None))
        for term, value in facts.values.items()
    )
    return element("dl", *values, class_=class_)


def _table(table: Table) -> Markup:
    """A table whose rows begin with their heading; small print is a row of its own."""
    is_map = any(isinstance(cell, HeatCell) for row in table.rows for cell in row.cells)
    turned = is_map and any(len(column.title) > _LONG_TITLE for column in table.columns)
    head = (_heading(column, turned=turned and not column.is_text) for column in table.columns)
    body = (line for row in table.rows for line in _row(row, table.columns))
    lines = element("thead", element("tr", *head)), element("tbody", *body)
    return element("table", *lines, class_="heat" if is_map else None)


def _heading(column: Column, *, turned: bool) -> Markup:
    """turned: whether the title is read from below, as those longer than the figures are."""
    title = element("span", column.title) if turned else column.title
    return element("th", title, class_="upright" if turned else _class(column), scope="col")


def _row(row: Row, columns: Sequence[Column]) -> Iterator[Markup]:
    heading, *cells = row.cells
    class_ = " ".join(["chosen"] * row.chosen + ["remarked"] * bool(row.remark))
    yield element(
        "tr",
        element("th", _content(heading, row), class_=_class(columns[0]), scope="row"),
        *(_cell(cell, row, column) for cell, column in zip(cells, columns[1:], strict=True)),
        class_=class_ or None,
        title=row.tip or None,
    )
    if row.remark:
        yield element("tr", element("td", row.remark, colspan=len(columns)), class_="remark")


def _cell(cell: Cell, row: Row, column: Column) -> Markup:
    if isinstance(cell, HeatCell):
        level = min(int(cell.share * _NUM_LEVELS), _NUM_LEVELS - 1)
        return element("td", cell.text, class_=f"heat-{level}{' best' * cell.chosen}", title=cell.tip)
    return element("td", _content(cell, row), class_=_class(column))


def _content(cell: Cell, row: Row) -> str:
    if isinstance(cell, Interval):
        return interval(cell, chosen=row.chosen)
    return join((swatch(cell), cell.name)) if isinstance(cell, Segment) else str(cell)


def _class(column: Column) -> str | None:
    return None if column.is_text else "number"


def _captioned(content: Markup, caption: str, *, footnote: str = "", titled: bool = False) -> Markup:
    """A table in a box that scrolls sideways, with its caption above the box so that it is never cut off.

    titled: whether a title above says the same as the caption, so that only screen readers need the caption.
    """
    named = element("figcaption", caption, class_="unseen" if titled else None)
    below = [element("p", footnote, class_="quiet")] if footnote else []
    return element("figure", named, scrolling(content, label=caption), *below)


def _cite(sources: Sequence[Source]) -> Markup:
    """Links to the references, as superscripts."""
    order = list(Source)
    links = (
        element(
            "a",
            str(order.index(source) + 1),
            href=f"#source-{order.index(source) + 1}",
            title=f"Source: {source.lower()}",
            aria_label=f"Source {order.index(source) + 1}: {source.lower()}",
        )
        for source in sources
    )
    return element("sup", join(links, "\u2009"), class_="cite")


def _references(found: Mapping[Source, Sequence[Part]]) -> Markup:
    title = element("h2", "Where the numbers come from", id="sources-title")
    items = (
        element("li", element("h3", source), *map(_part, parts), id=f"source-{number}")
        for number, (source, parts) in enumerate(found.items(), start=1)
    )
    notes = element("ol", *items, class_="notes")
    return element("section", title, notes, id="sources", aria_labelledby="sources-title")
