"""Curves as inline SVG: named points over two axes, joined where they belong together."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from swiftspec.reports.html.charts import nice_ticks
from swiftspec.reports.html.markup import Markup, element, join

__all__ = ["Curve", "Point", "curves"]

_HEIGHT_PX = 280
_NUM_PAINTS = 6
_MARGIN = 1.06


class Point(NamedTuple):
    """A point and its tooltip. chosen: whether it is set off."""

    x: float
    y: float
    title: str
    chosen: bool = False


class Curve(NamedTuple):
    """Points of one name, ascending in x. joined: whether lines connect them."""

    name: str
    points: Sequence[Point]
    joined: bool = True


def curves(drawn: Sequence[Curve], *, x_title: str, y_title: str, label: str) -> Markup:
    """All curves over axes from 0, with a legend."""
    x_ticks = nice_ticks(max(point.x for curve in drawn for point in curve.points))
    y_ticks = nice_ticks(max(point.y for curve in drawn for point in curve.points))
    right = _MARGIN * max(x_ticks[-1], *(point.x for curve in drawn for point in curve.points))
    top = _MARGIN * max(y_ticks[-1], *(point.y for curve in drawn for point in curve.points))

    def across(x: float) -> str:
        return f"{100 * x / right:.2f}%"

    def down(y: float) -> float:
        return round(_HEIGHT_PX * (1 - y / top), 1)

    def marks(curve: Curve) -> Iterator[Markup]:
        for left, after in pairwise(curve.points) if curve.joined else ():
            yield element("line", x1=across(left.x), x2=across(after.x), y1=down(left.y), y2=down(after.y))
        for point in curve.points:
            title = element("title", point.title)
            class_ = "chosen" if point.chosen else None
            yield element(
                "circle", title, cx=across(point.x), cy=down(point.y), r=6 if point.chosen else 4, class_=class_
            )

    grid = [
        *(element("line", class_="axis", x1="0", x2="100%", y1=down(tick), y2=down(tick)) for tick in y_ticks),
        *(element("text", f"{tick:g}", x="-8", y=down(tick) + 4, text_anchor="end") for tick in y_ticks),
        *(element("text", f"{tick:g}", x=across(tick), y=_HEIGHT_PX + 18, text_anchor="middle") for tick in x_ticks),
    ]
    groups = [element("g", *marks(curve), class_=f"curve-{number % _NUM_PAINTS}") for number, curve in enumerate(drawn)]
    chart = element(
        "svg", *grid, *groups, class_="curves", width="100%", height=_HEIGHT_PX + 26, role="img", aria_label=label
    )
    names = (
        element("li", element("span", class_=f"swatch curve-{number % _NUM_PAINTS}", aria_hidden="true"), curve.name)
        for number, curve in enumerate(drawn)
    )
    return join(
        (
            element("p", f"{y_title} over {x_title}", class_="quiet"),
            element("div", chart, class_="plot"),
            element("ul", join(names), class_="legend"),
        )
    )
