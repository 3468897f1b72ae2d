from xml.etree import ElementTree

import pytest

from swiftspec.reports.html.charts import Mark, Segment, frontier, interval, nice_ticks, stacked_bar, timeline_tracks
from swiftspec.reports.html.markup import Markup
from tests.cli.samples import parallel_timeline


def shares(svg: Markup, tag: str, attribute: str) -> list[float]:
    """Percentages of an attribute of every element of a kind."""
    return [float(found.attrib[attribute].removesuffix("%")) for found in ElementTree.fromstring(svg).iter(tag)]


def titles(svg: Markup) -> list[str | None]:
    return [found.text for found in ElementTree.fromstring(svg).iter("title")]


BAR = [Segment("a", 1.0, "verify", "a: 1"), Segment("b", 3.0, "expand", "b: 3")]


def test_segments_fill_the_bar_in_proportion() -> None:
    bar = stacked_bar(BAR, label="both")
    assert shares(bar, "rect", "x") == [0.0, 25.0]
    assert shares(bar, "rect", "width") == [25.0, 75.0]
    assert titles(bar) == ["a: 1", "b: 3"]


def test_segments_leave_room_up_to_a_total() -> None:
    assert shares(stacked_bar(BAR, label="both", total=8.0), "rect", "width") == [12.5, 37.5]


def test_interval_lies_between_nought_and_the_limit() -> None:
    drawn = interval(90.0, 100.0, 110.0, limit=200.0, chosen=True)
    axis, reach, value = zip(shares(drawn, "line", "x1"), shares(drawn, "line", "x2"), strict=True)
    assert (axis, reach, value) == ((0.0, 100.0), (45.0, 55.0), (50.0, 50.0))


def test_spans_lie_where_they_were_and_fill_no_more_than_the_width() -> None:
    timeline = parallel_timeline(num_rounds=10)
    excerpt = timeline.excerpt()
    drawn = timeline_tracks(excerpt, timeline.process_names, label="rounds")
    left, width = shares(drawn, "rect", "x"), shares(drawn, "rect", "width")
    assert max(x + w for x, w in zip(left, width, strict=True)) <= 100.01
    assert len(left) == len(excerpt.spans)
    # A round is 0.1 of 0.995 s, its verification 0.09 s.
    assert (left[1 * 3], width[1 * 3]) == pytest.approx((100 * 0.1 / 0.995, 100 * 0.09 / 0.995), abs=0.01)
    assert titles(drawn)[0] == "verify, 8 rows: 90.00 ms"


def test_frontier_never_falls_and_passes_what_is_no_faster() -> None:
    marks = [Mark(1, 50.0, "one", False), Mark(2, 40.0, "two", False), Mark(4, 100.0, "four", True)]
    root = ElementTree.fromstring(frontier(marks, label="speed"))
    steps = [line for line in root.iter("line") if line.get("class") == "step"]
    # From above 1 of 4 devices to above 4 of 4, then up.
    assert [(line.get("x1"), line.get("x2")) for line in steps] == [("12.5%", "87.5%"), ("87.5%", "87.5%")]
    heights = {circle.findtext("title"): float(circle.attrib["cy"]) for circle in root.iter("circle")}
    assert heights["four"] < heights["one"] < heights["two"]


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
