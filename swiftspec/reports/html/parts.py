"""Pieces that several sections are made of: sections, tables, figures with their provenance."""

from collections.abc import Sequence
from dataclasses import dataclass

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.reports.formatting import provenance_shares
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.reports.html.sources import Source, cite
from swiftspec.timing.timeline import Timeline

__all__ = [
    "DASH",
    "Column",
    "View",
    "as_sentence",
    "definitions",
    "machine",
    "rests_on",
    "section",
    "shape_text",
    "table",
    "traced",
]

DASH = "\N{EN DASH}"  # an empty cell
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Inputs of a report."""

    plan: Plan
    profile: Profile
    timeline: Timeline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its heading, and whether it holds numbers, which are set flush right."""

    heading: str
    numeric: bool = False


def section(key: str, title: str, *children: str, sources: Sequence[Source]) -> Markup:
    """A titled part of the report; the title cites where its numbers come from."""
    heading = element("h2", title, " ", cite(*sources), id=f"{key}-title")
    return element("section", heading, *children, id=key, aria_labelledby=f"{key}-title")


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    chosen: int | None = None,
    remarks: Sequence[str] = (),
    titled: bool = False,
) -> Markup:
    """A table in a box that scrolls sideways where it is wider than the page.

    Parameters
    ----------
    rows : sequence of sequences of str
        Cells; the first of each row is its heading.
    chosen : int, optional
        The row to set off.
    remarks : sequence of str
        A line of small print below each row.
    titled : bool
        Whether a title above says the same as the caption, so that only screen readers need the caption.
    """
    head = element("tr", *(element("th", column.heading, class_=_class(column), scope="col") for column in columns))
    body: list[Markup] = []
    for index, row in enumerate(rows):
        class_ = "chosen" if index == chosen else None
        cells = [
            element("td" if number else "th", cell, class_=_class(column), scope=None if number else "row")
            for number, (column, cell) in enumerate(zip(columns, row, strict=True))
        ]
        remark = remarks[index] if remarks else ""
        body.append(element("tr", *cells, class_=" ".join(filter(None, [class_, remark and "remarked"])) or None))
        if remark:
            body.append(element("tr", element("td", remark, colspan=len(columns)), class_="remark"))
    return captioned(element("table", element("thead", head), element("tbody", *body)), caption, titled=titled)


def captioned(content: Markup, caption: str, *, label: str | None = None, titled: bool = False) -> Markup:
    """A table in a box that scrolls sideways, with its caption above the box so that it is never cut off.

    Parameters
    ----------
    label : str, optional
        Name of the box for screen readers; the caption if not given.
    titled : bool
        Whether a title above says the same as the caption, so that only screen readers need the caption.
    """
    named = element("figcaption", caption, class_="unseen" if titled else None)
    return element("figure", named, scrolling(content, label=label or caption))


def scrolling(content: Markup, *, label: str) -> Markup:
    """A box that scrolls sideways, also by keyboard, so that the page itself never does."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def definitions(pairs: Sequence[tuple[str, str]], *, class_: str) -> Markup:
    """Terms with their values."""
    items = (element("div", element("dt", term), element("dd", value)) for term, value in pairs)
    return element("dl", join(items), class_=class_)


def traced(text: str, candidate: Candidate) -> Markup:
    """A predicted figure whose tooltip says what it rests on."""
    return element("span", text, title=rests_on(candidate), class_="traced")


def rests_on(candidate: Candidate) -> str:
    """Tooltip: `Simulated; the time rests on measured 93 %, interpolated 7 %`."""
    return f"Simulated; the time rests on {provenance_shares(candidate.prediction.provenance)}"


def machine(plan: Plan) -> str:
    """Number and name of the devices; the name alone if there is one."""
    return f"{plan.num_devices} {_TIMES} {plan.device}" if plan.num_devices > 1 else plan.device


def as_sentence(phrase: str) -> str:
    """The phrase with a capital letter and a full stop."""
    return f"{phrase[:1].upper()}{phrase[1:].removesuffix('.')}."


def shape_text(candidate: Candidate) -> str:
    """Shape as text, `verify_rows=8, expand_rows=4`; empty if the policy has none."""
    return candidate.describe().partition(" (")[2].removesuffix(")")


def _class(column: Column) -> str | None:
    return "number" if column.numeric else None
