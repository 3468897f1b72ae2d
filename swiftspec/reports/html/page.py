"""The report of a plan: one HTML file that needs nothing else, from a Plan, its Profile and a simulated timeline."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import groupby

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.reports.html.charts import (
    bar,
    curves,
    heat_map,
    interval,
    scrolling,
    swatch,
    timeline_tracks,
)
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.reports.model import (
    Bar,
    Cell,
    Column,
    Curves,
    Doubt,
    Facts,
    HeatMap,
    Interval,
    Part,
    Row,
    Section,
    Source,
    Table,
    Tracks,
)
from swiftspec.reports.plan import plan_sections
from swiftspec.reports.references import Reference, references
from swiftspec.timing.timeline import Timeline

__all__ = ["render"]

_GRIDS = {Bar: "processes", HeatMap: "heats"}  # charts that stand side by side


def render(plan: Plan, *, profile: Profile, timeline: Timeline | None) -> str:
    """The report as the text of an HTML file; the same inputs give the same text.

    Parameters
    ----------
    profile : Profile
        The one that the plan was made from.
    timeline : Timeline, optional
        A simulated request of the chosen candidate; without one, the sections about a round's time are left out.
    """
    answer, *sections = plan_sections(plan, profile=profile, timeline=timeline)
    where = f"{plan.num_devices} \N{MULTIPLICATION SIGN} {plan.device}" if plan.num_devices > 1 else plan.device
    titles = {section.key: section.title for section in sections}
    main = element(
        "main",
        _header(answer, f"{plan.target} with {plan.draft}, on {where}", titles),
        *(_section(section, titles) for section in sections),
        _references(references(plan, profile)),
    )
    head = _head(f"{plan.target.model} with {plan.draft.model} on {where}")
    return "<!DOCTYPE html>\n" + element("html", head, element("body", main), lang="en") + "\n"


def _head(title: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(files("swiftspec.reports.html").joinpath("report.css").read_text(encoding="utf-8"))),
    )


def _header(answer: Section, subject: str, titles: Mapping[str, str]) -> Markup:
    """The answer as the page's title, with what to doubt and the figures that explain it."""
    rest = element("span", f"{answer.caption} ", _cite(answer.sources), class_="rest")
    return element(
        "header",
        element("p", subject, class_="eyebrow"),
        element("h1", answer.title, " ", rest),
        *(
            _facts(part, class_="key-figures") if isinstance(part, Facts) else _part(part, titles)
            for part in answer.parts
        ),
    )


def _section(section: Section, titles: Mapping[str, str]) -> Markup:
    heading = element("h2", section.title, " ", _cite(section.sources), id=f"{section.key}-title")
    caption = [element("p", section.caption, class_="quiet")] if section.caption else []
    body = []
    for kind, parts in groupby(section.parts, key=type):
        drawn = [_part(part, titles) for part in parts]
        body += [element("div", *drawn, class_=_GRIDS[kind])] if kind in _GRIDS else drawn
    return element("section", heading, *caption, *body, id=section.key, aria_labelledby=f"{section.key}-title")


def _part(part: Part, titles: Mapping[str, str]) -> Markup:
    """A part of a section. titles: of the sections that a doubt may point to."""
    match part:
        case str():
            return element("p", part)
        case Doubt():
            more = [" ", element("a", titles[part.see], href=f"#{part.see}")] if part.see in titles else []
            return element("p", part.title, *more, class_="warning", role="note")
        case Facts():
            return _facts(part, class_="facts")
        case Table():
            return _captioned(_table(part), part.title, footnote=part.footnote)
        case Bar():
            title = element("h3", part.title)
            table = [] if part.table is None else [_captioned(_table(part.table), part.table.title, titled=True)]
            return element("div", title, bar(part), *table, class_="process")
        case HeatMap():
            return _captioned(heat_map(part), part.title)
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
    head = (element("th", column.title, class_=_class(column), scope="col") for column in table.columns)
    body = (line for row in table.rows for line in _row(row, table.columns))
    return element("table", element("thead", element("tr", *head)), element("tbody", *body))


def _row(row: Row, columns: Sequence[Column]) -> Iterator[Markup]:
    cells = (
        element("td" if number else "th", _cell(cell, row), class_=_class(column), scope=None if number else "row")
        for number, (column, cell) in enumerate(zip(columns, row.cells, strict=True))
    )
    class_ = " ".join(["chosen"] * row.chosen + ["remarked"] * bool(row.remark))
    yield element("tr", *cells, class_=class_ or None, title=row.tip or None)
    if row.remark:
        yield element("tr", element("td", row.remark, colspan=len(columns)), class_="remark")


def _cell(cell: Cell, row: Row) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Interval):
        return interval(cell, chosen=row.chosen)
    return join((swatch(cell), cell.name))


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


def _references(found: Mapping[Source, Reference]) -> Markup:
    title = element("h2", "Where the numbers come from", id="sources-title")
    items = (
        element("li", element("h3", source), *_reference(reference), id=f"source-{number}")
        for number, (source, reference) in enumerate(found.items(), start=1)
    )
    return element(
        "section", title, element("ol", *items, class_="notes"), id="sources", aria_labelledby="sources-title"
    )


def _reference(reference: Reference) -> Iterator[Markup]:
    for sentence in reference.sentences:
        yield element("p", sentence)
    if (file := reference.file) is not None:
        digest = element("code", file.sha256, class_="digest")
        yield element("p", element("code", file.path), ", SHA-256 ", digest)
    if (origin := reference.origin) is not None:
        versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
        with_versions = f" with {versions}" if versions else ""
        yield element("p", f"Written {origin.created_utc} on {origin.device}{with_versions}, by")
        yield element("pre", element("code", origin.command))
