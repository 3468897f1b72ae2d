"""Charts as inline SVG: horizontal positions are shares of the width, so that text keeps its size on any screen.

Colours are classes of the style sheet (`paint-verify`), which has a light and a dark value for each. A mark's <title>
is its tooltip; the chart's aria-label says the same in one sentence.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from swiftspec.reports.formatting import milliseconds, speed
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Excerpt, Phase

__all__ = ["Mark", "Segment", "frontier", "interval", "legend", "nice_ticks", "stacked_bar", "timeline_tracks"]

_BAR_PX = 22
_TRACK_PX, _TRACK_GAP_PX = 30, 12
_FRONTIER_PX = 240


class Segment(NamedTuple):
    """A piece of a bar. shade: opacity, which tells pieces of one colour apart."""

    name: str
    value: float
    paint: str | Provenance | Phase
    title: str
    shade: float = 1.0


class Mark(NamedTuple):
    """A point over a number of devices."""

    devices: int
    tokens_per_s: float
    title: str
    chosen: bool


def stacked_bar(segments: Sequence[Segment], *, label: str, total: float | None = None) -> Markup:
    """Segments side by side. total: the value at full width; the sum of the segments if None."""
    total = total or sum(segment.value for segment in segments)
    rects, start = [], 0.0
    for segment in segments:
        rects.append(
            element(
                "rect",
                element("title", segment.title),
                class_=f"paint-{segment.paint}",
                x=_share(start / total),
                width=_share(segment.value / total),
                height=_BAR_PX,
                fill_opacity=None if segment.shade == 1 else segment.shade,
            )
        )
        start += segment.value
    return _svg(*rects, height=_BAR_PX, label=label, class_="bar")


def legend(segments: Sequence[Segment]) -> Markup:
    """Swatch and name of each segment."""
    items = (element("li", swatch(segment.paint, shade=segment.shade), segment.name) for segment in segments)
    return element("ul", join(items), class_="legend")


def swatch(paint: str, *, shade: float = 1.0) -> Markup:
    """A square in the colour of a segment."""
    style = None if shade == 1 else f"opacity:{shade:.2f}"
    return element("span", class_=f"swatch paint-{paint}", style=style, aria_hidden="true")


def interval(low: float, value: float, high: float, *, limit: float, chosen: bool) -> Markup:
    """A value on a line from 0 to `limit`, with its interval."""
    middle = 11
    return _svg(
        element("title", f"{speed(value)} ({speed(low)} to {speed(high)})"),
        element("line", class_="axis", x1="0", x2="100%", y1=middle, y2=middle),
        element("line", class_="range", x1=_share(low / limit), x2=_share(high / limit), y1=middle, y2=middle),
        element(
            "line", class_="value", x1=_share(value / limit), x2=_share(value / limit), y1=middle - 7, y2=middle + 7
        ),
        height=2 * middle,
        label=f"{speed(value)} tokens/s, from {speed(low)} to {speed(high)}",
        class_="interval chosen" if chosen else "interval",
    )


def timeline_tracks(excerpt: Excerpt, tracks: Sequence[str], *, label: str) -> Markup:
    """Timeline chart with a track per process, in the order of `excerpt.processes`."""
    length_s = excerpt.end_s - excerpt.start_s
    bottom = len(tracks) * (_TRACK_PX + _TRACK_GAP_PX)
    ticks = list(_time_axis(length_s, bottom))
    rects = []
    for span in excerpt.spans:
        top = excerpt.processes.index((span.role, span.group)) * (_TRACK_PX + _TRACK_GAP_PX)
        inset = _TRACK_PX * 0.4 if span.phase is Phase.WAIT else 0
        rows = f", {span.rows} rows" if span.rows else f", {span.tokens} tokens" if span.tokens else ""
        rects.append(
            element(
                "rect",
                element("title", f"{span.phase}{rows}: {milliseconds(span.end_s - span.start_s)} ms"),
                class_=f"paint-{span.phase}",
                x=_share((span.start_s - excerpt.start_s) / length_s),
                width=_share((span.end_s - span.start_s) / length_s),
                y=top + inset,
                height=_TRACK_PX - 2 * inset,
            )
        )
    names = [
        element("text", name, x="-10", y=number * (_TRACK_PX + _TRACK_GAP_PX) + _TRACK_PX / 2 + 4, text_anchor="end")
        for number, name in enumerate(tracks)
    ]
    return _svg(*ticks, *rects, *names, height=bottom + 20, label=label, class_="tracks")


def _time_axis(length_s: float, bottom: float) -> Iterator[Markup]:
    ticks_ms = nice_ticks(length_s * 1e3)
    for at_ms in ticks_ms:
        x = _share(at_ms / (length_s * 1e3))
        yield element("line", class_="axis", x1=x, x2=x, y1=0, y2=bottom)
        unit = " ms" if at_ms == ticks_ms[-1] else ""
        anchor = "start" if not at_ms else "end" if at_ms > 0.95 * length_s * 1e3 else "middle"
        yield element("text", f"{at_ms:g}{unit}", x=x, y=bottom + 14, text_anchor=anchor)


def frontier(marks: Sequence[Mark], *, label: str) -> Markup:
    """tokens/s over devices: the best of each count, and the line that more devices never fall below.

    Parameters
    ----------
    marks : sequence of Mark
        One for each number of devices, ascending.
    """
    counts = range(1, marks[-1].devices + 1)
    ticks = nice_ticks(max(mark.tokens_per_s for mark in marks))
    limit = max(ticks[-1], *(mark.tokens_per_s for mark in marks)) * 1.08

    def across(devices: int) -> float:
        return (devices - 0.5) / len(counts)

    def down(tokens_per_s: float) -> float:
        return _FRONTIER_PX * (1 - tokens_per_s / limit)

    grid = [
        join(
            (
                element("line", class_="axis", x1="0", x2="100%", y1=down(tick), y2=down(tick)),
                element("text", f"{tick:g}", x="-8", y=down(tick) + 4, text_anchor="end"),
            )
        )
        for tick in ticks
    ]
    below = [
        element("text", str(count), x=_share(across(count)), y=_FRONTIER_PX + 18, text_anchor="middle")
        for count in counts
    ]
    steps: list[Markup] = []
    best: Mark | None = None
    for mark in marks:
        if best is None or mark.tokens_per_s > best.tokens_per_s:
            if best is not None:
                steps += _step(across(best.devices), across(mark.devices), down(best.tokens_per_s), down(mark[1]))
            best = mark
    dots = [join(_dot(mark, across(mark.devices), down(mark.tokens_per_s))) for mark in marks]
    return _svg(*grid, *below, *steps, *dots, height=_FRONTIER_PX + 26, label=label, class_="frontier")


def _step(left: float, right: float, from_px: float, to_px: float) -> Iterator[Markup]:
    yield element("line", class_="step", x1=_share(left), x2=_share(right), y1=from_px, y2=from_px)
    yield element("line", class_="step", x1=_share(right), x2=_share(right), y1=from_px, y2=to_px)


def _dot(mark: Mark, across: float, down: float) -> Iterator[Markup]:
    class_ = "chosen" if mark.chosen else None
    title = element("title", mark.title)
    yield element("circle", title, class_=class_, cx=_share(across), cy=down, r=6 if mark.chosen else 4.5)
    value = f"{mark.tokens_per_s:.0f}"
    yield element("text", value, class_=class_, x=_share(across), y=down - 11, text_anchor="middle")


def nice_ticks(limit: float, *, most: int = 5) -> list[float]:
    """0 and round multiples of 1, 2 or 5 up to `limit`, at most `most` of them not counting 0."""
    scale = 10.0 ** math.floor(math.log10(limit / most))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale * most >= limit)
    return [step * number for number in range(math.floor(limit / step * (1 + 1e-9)) + 1)]


def _svg(*children: str, height: float, label: str, class_: str) -> Markup:
    return element("svg", *children, class_=class_, width="100%", height=height, role="img", aria_label=label)


def _share(value: float) -> str:
    return f"{value * 100:.3f}".rstrip("0").rstrip(".") + "%"
