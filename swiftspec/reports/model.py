"""A report as data: sections of sentences, figures, tables and charts, which the terminal prints and a page draws.

All facts, their order, rounding and wording are here; a renderer only lays them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from swiftspec.reports.formatting import speed
from swiftspec.timing.timeline import Excerpt

DASH = "\N{EN DASH}"  # an empty cell


class Source(StrEnum):
    """Kinds of sources of a report's numbers, in the order of their references."""

    SIMULATION = "Simulation"
    LATENCIES = "Latencies"
    ACCEPTANCE = "Acceptance"
    DATASHEETS = "Weights and devices"


SIMULATED = (Source.SIMULATION, Source.LATENCIES, Source.ACCEPTANCE)


class Column(NamedTuple):
    """A column of a table. Its title names the unit; numbers are flush right, text is flush left."""

    title: str
    is_text: bool


def texts(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, True) for title in titles)


def numbers(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, False) for title in titles)


class Interval(NamedTuple):
    """A speed in tokens/s and its 95 % interval; drawn on a line from 0 to `limit`."""

    low: float
    value: float
    high: float
    limit: float

    def __str__(self) -> str:
        return f"{speed(self.low)} to {speed(self.high)}"


class Segment(NamedTuple):
    """A piece of a bar.

    text: its value in words. paint: a phase, a provenance or `between`, each with a colour of its own. shade: opacity,
    which tells pieces of one colour apart.
    """

    name: str
    value: float
    text: str
    paint: str
    shade: float = 1.0


class HeatCell(NamedTuple):
    """A figure on a ground of a colour: the palest at a share of 0, the strongest at 1. tip: the figure in words."""

    text: str
    share: float
    tip: str
    chosen: bool

    def __str__(self) -> str:
        return self.text


Cell = str | Interval | HeatCell | Segment


class Row(NamedTuple):
    """A row of a table. remark: small print below it. tip: what its figures rest on. chosen: whether it is set off."""

    cells: Sequence[Cell]
    remark: str = ""
    tip: str = ""
    chosen: bool = False


def row(*cells: Cell, remark: str = "", tip: str = "", chosen: bool = False) -> Row:
    return Row(cells, remark, tip, chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under column titles. footnote: what marks in it mean, or what it leaves out."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    footnote: str = ""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A sentence about what to doubt. see: key of the section that says more."""

    title: str
    see: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, as it was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Terms with their values. tip: what the values rest on."""

    values: Mapping[str, str]
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Segments side by side. title: the same in words. total: value at full width, if not that of all segments.

    table: what the segments are, in numbers; without it, a legend says that.
    """

    title: str
    segments: Sequence[Segment]
    total: float | None = None
    table: Table | None = None


class Point(NamedTuple):
    """A point of a chart and its tooltip. chosen: whether it is set off."""

    x: float
    y: float
    title: str
    chosen: bool = False


class Curve(NamedTuple):
    """Points of one name, ascending in x. joined: whether lines connect them."""

    name: str
    points: Sequence[Point]
    joined: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Curves over two axes from 0. label: what they are, in words."""

    curves: Sequence[Curve]
    x_title: str
    y_title: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracks:
    """A piece of a timeline, a track for each of its processes. label: the same in words."""

    excerpt: Excerpt
    names: Sequence[str]
    label: str


Chart = Bar | Curves | Tracks
Part = str | Doubt | Command | Facts | Table | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of a report: sentences (plain `str`), figures, tables and charts.

    caption: how to read its charts. sources: of its numbers.
    """

    key: str
    title: str
    parts: Sequence[Part]
    caption: str = ""
    sources: Sequence[Source] = ()
