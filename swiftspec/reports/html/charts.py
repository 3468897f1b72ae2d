"""Charts as inline SVG: horizontal positions are shares of the width, so that text keeps its size on any screen.

Colours are classes of the style sheet (`paint-verify`), which has a light and a dark value for each. A mark's <title>
is its tooltip; the chart's aria-label says the same in one sentence.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from swiftspec.reports.formatting import milliseconds, speed
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.reports.model import Bar, Curve, Curves, Interval, Segment, Tracks
from swiftspec.timing.timeline import Phase, Span

_BAR_PX = 22
_TRACK_PX, _TRACK_GAP_PX = 30, 12
_CURVES_PX = 280
_NUM_PAINTS = 6
_MOST_TICKS = 5  # of an axis, but that at 0


def scrolling(content: Markup, *, label: str) -> Markup:
    """A box that scrolls sideways, also by keyboard, so that the page itself never does."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def bar(drawn: Bar) -> Markup:
    """Segments side by side; below them a legend, unless a table says what they are."""
    total = drawn.total or sum(segment.value for segment in drawn.segments)
    starts = accumulate((segment.value for segment in drawn.segments), initial=0.0)
    rects = (
        element(
            "rect",
            element("title", f"{segment.name}: {segment.text}"),
            class_=f"paint-{segment.paint}",
            x=_share(start / total),
            width=_share(segment.value / total),
            height=_BAR_PX,
            fill_opacity=None if segment.shade == 1 else segment.shade,
        )
        for start, segment in zip(starts, drawn.segments, strict=False)
    )
    box = element("div", _svg(*rects, height=_BAR_PX, label=drawn.title, class_="bar"), class_="vessel")
    if drawn.table is not None:
        return box
    return join((box, _legend((swatch(segment), f"{segment.name} {segment.text}") for segment in drawn.segments)))


def swatch(segment: Segment) -> Markup:
    style = None if segment.shade == 1 else f"opacity:{segment.shade:.2f}"
    return element("span", class_=f"swatch paint-{segment.paint}", style=style, aria_hidden="true")


def _legend(items: Iterable[tuple[Markup, str]]) -> Markup:
    return element("ul", *(element("li", mark, name) for mark, name in items), class_="legend")


def interval(drawn: Interval, *, chosen: bool) -> Markup:
    """A value on a line from 0 to the limit, with its interval."""
    middle = 11
    low, value, high = (_share(at / drawn.limit) for at in (drawn.low, drawn.value, drawn.high))
    return _svg(
        element("title", f"{speed(drawn.value)} ({drawn})"),
        element("line", class_="axis", x1="0", x2="100%", y1=middle, y2=middle),
        element("line", class_="range", x1=low, x2=high, y1=middle, y2=middle),
        element("line", class_="value", x1=value, x2=value, y1=middle - 7, y2=middle + 7),
        height=2 * middle,
        label=f"{speed(drawn.value)} tokens/s, from {drawn}",
        class_="interval chosen" if chosen else "interval",
    )


def timeline_tracks(drawn: Tracks) -> Markup:
    """Phases of every process over time, with a legend."""
    excerpt = drawn.excerpt
    length_s = excerpt.end_s - excerpt.start_s
    bottom = len(drawn.names) * (_TRACK_PX + _TRACK_GAP_PX)
    rects = (_span(span, drawn, length_s=length_s) for span in excerpt.spans)
    names = (
        element("text", name, x="-10", y=number * (_TRACK_PX + _TRACK_GAP_PX) + _TRACK_PX / 2 + 4, text_anchor="end")
        for number, name in enumerate(drawn.names)
    )
    ticks = _time_axis(length_s, bottom)
    chart = _svg(*ticks, *rects, *names, height=bottom + 20, label=drawn.label, class_="tracks")
    phases = [phase for phase in Phase if any(span.phase is phase for span in excerpt.spans)]
    legend = _legend((swatch(Segment(phase, 0.0, "", phase)), phase) for phase in phases)
    return join((scrolling(element("div", chart, class_="plot wide"), label=drawn.label), legend))


def _span(span: Span, drawn: Tracks, *, length_s: float) -> Markup:
    start_s, processes = drawn.excerpt.start_s, drawn.excerpt.processes
    top = processes.index((span.role, span.group)) * (_TRACK_PX + _TRACK_GAP_PX)
    inset = _TRACK_PX * 0.4 if span.phase is Phase.WAIT else 0
    rows = f", {span.rows} rows" if span.rows else f", {span.tokens} tokens" if span.tokens else ""
    return element(
        "rect",
        element("title", f"{span.phase}{rows}: {milliseconds(span.end_s - span.start_s)} ms"),
        class_=f"paint-{span.phase}",
        x=_share((span.start_s - start_s) / length_s),
        width=_share((span.end_s - span.start_s) / length_s),
        y=top + inset,
        height=_TRACK_PX - 2 * inset,
    )


def _time_axis(length_s: float, bottom: float) -> Iterator[Markup]:
    ticks_ms = nice_ticks(length_s * 1e3)
    for at_ms in ticks_ms:
        x = _share(at_ms / (length_s * 1e3))
        yield element("line", class_="axis", x1=x, x2=x, y1=0, y2=bottom)
        unit = " ms" if at_ms == ticks_ms[-1] else ""
        anchor = "start" if not at_ms else "end" if at_ms > 0.95 * length_s * 1e3 else "middle"
        yield element("text", f"{at_ms:g}{unit}", x=x, y=bottom + 14, text_anchor=anchor)


def curves(drawn: Curves) -> Markup:
    """All curves over axes from 0, with a legend."""
    points = [point for curve in drawn.curves for point in curve.points]
    x_ticks, y_ticks = nice_ticks(max(point.x for point in points)), nice_ticks(max(point.y for point in points))
    right = 1.06 * max(x_ticks[-1], *(point.x for point in points))
    top = 1.06 * max(y_ticks[-1], *(point.y for point in points))

    def across(x: float) -> str:
        return _share(x / right)

    def down(y: float) -> float:
        return _CURVES_PX * (1 - y / top)

    def marks(curve: Curve) -> Iterator[Markup]:
        for left, after in pairwise(curve.points) if curve.joined else ():
            yield element("line", x1=across(left.x), x2=across(after.x), y1=down(left.y), y2=down(after.y))
        for point in curve.points:
            title, class_ = element("title", point.title), "chosen" if point.chosen else None
            yield element("circle", title, cx=across(point.x), cy=down(point.y), r=6 if class_ else 4, class_=class_)

    grid = (mark for tick in y_ticks for mark in _level(tick, down(tick)))
    below = (element("text", f"{tick:g}", x=across(tick), y=_CURVES_PX + 18, text_anchor="middle") for tick in x_ticks)
    classes = [f"curve-{number % _NUM_PAINTS}" for number in range(len(drawn.curves))]
    groups = (element("g", *marks(curve), class_=name) for curve, name in zip(drawn.curves, classes, strict=True))
    chart = _svg(*grid, *below, *groups, height=_CURVES_PX + 26, label=drawn.label, class_="curves")
    names = (
        (element("span", class_=f"swatch {name}", aria_hidden="true"), curve.name)
        for curve, name in zip(drawn.curves, classes, strict=True)
    )
    title = element("p", f"{drawn.y_title} over {drawn.x_title}", class_="quiet")
    return join((title, element("div", chart, class_="plot"), _legend(names)))


def _level(tick: float, down_px: float) -> Iterator[Markup]:
    yield element("line", class_="axis", x1="0", x2="100%", y1=down_px, y2=down_px)
    yield element("text", f"{tick:g}", x="-8", y=down_px + 4, text_anchor="end")


def nice_ticks(limit: float) -> Sequence[float]:
    """0 and round multiples of 1, 2 or 5 up to `limit`, at most five of them not counting 0."""
    scale = 10.0 ** math.floor(math.log10(limit / _MOST_TICKS))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale * _MOST_TICKS >= limit)
    return [step * number for number in range(math.floor(limit / step * (1 + 1e-9)) + 1)]


def _svg(*children: str, height: float, label: str, class_: str) -> Markup:
    return element("svg", *children, class_=class_, width="100%", height=height, role="img", aria_label=label)


def _share(value: float) -> str:
    return f"{value * 100:.3f}".rstrip("0").rstrip(".") + "%"
