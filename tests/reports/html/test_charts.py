from xml.etree import ElementTree

import pytest

from swiftspec.reports.html.charts import bar, curves, interval, nice_ticks, timeline_tracks
from swiftspec.reports.html.markup import Markup
from swiftspec.reports.model import Bar, Curve, Curves, Interval, Point, Segment, Tracks
from tests.cli.samples import parallel_timeline


def root(drawn: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{drawn}</div>")


def shares(svg: Markup, tag: str, attribute: str) -> list[float]:
    """Percentages of an attribute of every element of a kind."""
    return [float(found.attrib[attribute].removesuffix("%")) for found in root(svg).iter(tag)]


def titles(svg: Markup) -> list[str | None]:
    return [found.text for found in root(svg).iter("title")]


SEGMENTS = (Segment("a", 1.0, "1 s", "verify"), Segment("b", 3.0, "3 s", "expand"))


def test_segments_fill_the_bar_in_proportion() -> None:
    drawn = bar(Bar(title="both", segments=SEGMENTS))
    assert shares(drawn, "rect", "x") == [0.0, 25.0]
    assert shares(drawn, "rect", "width") == [25.0, 75.0]
    assert titles(drawn) == ["a: 1 s", "b: 3 s"]
    assert ["".join(item.itertext()) for item in root(drawn).iter("li")] == ["a 1 s", "b 3 s"]


def test_segments_leave_room_up_to_a_total() -> None:
    assert shares(bar(Bar(title="both", segments=SEGMENTS, total=8.0)), "rect", "width") == [12.5, 37.5]


def test_interval_lies_between_nought_and_the_limit() -> None:
    drawn = interval(Interval(90.0, 100.0, 110.0, limit=200.0), chosen=True)
    axis, reach, value = zip(shares(drawn, "line", "x1"), shares(drawn, "line", "x2"), strict=True)
    assert (axis, reach, value) == ((0.0, 100.0), (45.0, 55.0), (50.0, 50.0))


def test_spans_lie_where_they_were_and_fill_no_more_than_the_width() -> None:
    timeline = parallel_timeline(num_rounds=10)
    excerpt = timeline.excerpt()
    drawn = timeline_tracks(Tracks(excerpt=excerpt, names=timeline.process_names, label="rounds"))
    left, width = shares(drawn, "rect", "x"), shares(drawn, "rect", "width")
    assert max(x + w for x, w in zip(left, width, strict=True)) <= 100.01
    assert len(left) == len(excerpt.spans)
    # A round is 0.1 of 0.995 s, its verification 0.09 s.
    assert (left[1 * 3], width[1 * 3]) == pytest.approx((100 * 0.1 / 0.995, 100 * 0.09 / 0.995), abs=0.01)
    assert titles(drawn)[0] == "verify, 8 rows: 90.00 ms"


def test_points_lie_where_they_are_between_the_axes_and_are_joined() -> None:
    points = [Point(1, 50.0, "one"), Point(2, 40.0, "two"), Point(4, 100.0, "four", chosen=True)]
    drawn = curves(Curves(curves=[Curve("all", points)], x_title="devices", y_title="Speed", label="speed"))
    circles = {circle.findtext("title"): circle.attrib for circle in root(drawn).iter("circle")}
    across = [float(circles[name]["cx"].removesuffix("%")) for name in ("one", "two", "four")]
    assert (across[1] / across[0], across[2] / across[0]) == pytest.approx((2, 4), abs=1e-3)
    assert float(circles["four"]["cy"]) < float(circles["one"]["cy"]) < float(circles["two"]["cy"])
    assert [circle.get("class") for circle in circles.values()] == [None, None, "chosen"]
    joined = [line for line in root(drawn).iter("line") if line.get("class") is None]
    assert [(line.get("x1"), line.get("x2")) for line in joined] == [
        (circles["one"]["cx"], circles["two"]["cx"]),
        (circles["two"]["cx"], circles["four"]["cx"]),
    ]


@pytest.mark.parametrize(
    ("limit", "ticks"),
    [
        (347.0, [0, 100, 200, 300]),
        (10.0, [0, 2, 4, 6, 8, 10]),
        (0.7, [0, 0.2, 0.4, 0.6]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_ticks_are_round_numbers(limit: float, ticks: list[float]) -> None:
    assert nice_ticks(limit) == pytest.approx(ticks)
