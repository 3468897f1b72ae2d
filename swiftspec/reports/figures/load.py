"""Figures of requests that share steps."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from swiftspec.artifacts.kinds import KindComparison
from swiftspec.policies.effects import Role
from swiftspec.reports.figures.recordings import PHASE_COLOURS, phase_patches
from swiftspec.reports.figures.style import COLOURS, GREY
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline

_LANE = 0.8  # height of a request's lane
_LEAST_WIDTH = 0.012  # of a bar that has room for a number, as a share of the window
_ROUNDS = 6  # that are shown, at most
_MARKERS = "osD^vPX*"


def kinds_by_load(compared: KindComparison) -> Figure:
    """Tokens/s of a user over clients, and over those of no draft; dashed where acceptance is assumed."""
    figure = Figure(figsize=(12.5, 5.2), layout="constrained")
    speeds, gains = figure.subplots(1, 2)
    number = 0
    for kind in compared.kinds:
        if not kind.points:
            continue
        is_plain = kind is compared.plain
        colour, marker = (GREY, ".") if is_plain else (COLOURS[number % 7], _MARKERS[number % len(_MARKERS)])
        number += not is_plain
        style = "--" if kind.provenance == "assumed" else "-"
        loads = [point.clients for point in kind.points]
        values = [point.user_tokens_per_s for point in kind.points]
        speeds.plot(loads, values, style, color=colour, marker=marker, label=kind.name)
        plain = [compared.plain.at(load) for load in loads]
        ratios = [value / point.user_tokens_per_s for value, point in zip(values, plain, strict=True) if point]
        gains.plot(loads[: len(ratios)], ratios, style, color=colour, marker=marker)
    speeds.set_ylabel("tokens/s that a user sees")
    gains.set_ylabel("times as fast as without a draft")
    for axes in (speeds, gains):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(compared.clients))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(compared.clients, [str(load) for load in compared.clients])
        axes.set_xlabel("clients at once")
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
    speeds.legend(title="dashed: acceptance assumed")
    figure.suptitle(f"{compared.target} in {compared.quantisation} on {compared.num_devices} {compared.device}")
    return figure


def shared_steps(timelines: Sequence[Timeline]) -> Figure:
    """Forwards of some requests while most of them run at once, with the rows of each.

    Bars with the same start and end are one step. Where the draft has devices of its own, it has the upper half of a
    request's lane.

    ValueError if no request has a verification.
    """
    return _drawn({"": timelines}, num_requests=6, height=4.2)


def shared_steps_compared(simulated: Sequence[Timeline], measured: Sequence[Timeline]) -> Figure:
    """As `shared_steps`, of a simulation and of what was measured, one above the other."""
    return _drawn({"simulated": simulated, "measured": measured}, num_requests=4, height=6.2)


def _drawn(titled: Mapping[str, Sequence[Timeline]], *, num_requests: int, height: float) -> Figure:
    """A panel for each, one above the other."""
    figure = Figure(figsize=(12, height), layout="constrained")
    present: set[Phase] = set()
    for axes, (title, timelines) in zip(figure.subplots(len(titled), squeeze=False).flat, titled.items(), strict=True):
        present |= _draw_window(axes, timelines, num_requests)
        axes.set_title(title)
    handles = phase_patches(present)
    figure.legend(handles=handles, ncols=len(handles), loc="outside lower center", frameon=False)
    figure.suptitle("Requests that share steps; numbers are rows")
    return figure


def _draw_window(axes: Axes, timelines: Sequence[Timeline], num_requests: int) -> set[Phase]:
    """Draw a stretch of time; the phases in it."""
    start_s, end_s, shown = _busiest(timelines, num_requests)
    is_split = any(span.role is Role.DRAFT for timeline in shown for span in timeline.spans)
    present = set()
    for lane, timeline in enumerate(shown):
        for span in timeline.spans:
            if span.phase in COMPUTING and span.start_s < end_s and span.end_s > start_s:
                _draw(axes, span, lane, is_split=is_split, start_s=start_s, end_s=end_s)
                present.add(span.phase)
    axes.set(
        xlabel="time (ms)",
        xlim=(0, (end_s - start_s) * 1e3),
        ylim=(len(shown) - 0.5, -0.5),
        yticks=range(len(shown)),
        yticklabels=[f"request {number}" for number in range(1, len(shown) + 1)],
    )
    return present


def _busiest(timelines: Sequence[Timeline], num_requests: int) -> tuple[float, float, Sequence[Timeline]]:
    """A stretch of time that begins where most requests decode, and requests that decode then."""
    decoding = [
        (each.verifications_s[0], each.start_s + each.e2e_s, each) for each in timelines if each.verifications_s
    ]
    if not decoding:
        raise ValueError("timelines has none with a verification; expected at least one")
    start_s = max((first for first, *_ in decoding), key=lambda at_s: sum(a <= at_s < b for a, b, _ in decoding))
    shown = [timeline for first, last, timeline in decoding if first <= start_s < last][-num_requests:]
    starts_s = [at_s for at_s in shown[-1].verifications_s if at_s >= start_s]
    end_s = starts_s[_ROUNDS] if len(starts_s) > _ROUNDS else shown[-1].start_s + shown[-1].e2e_s
    return start_s, end_s, shown


def _draw(axes: Axes, span: Span, lane: int, *, is_split: bool, start_s: float, end_s: float) -> None:
    height = _LANE / 2 if is_split else _LANE
    middle = lane + (0.0 if not is_split else -height / 2 if span.role is Role.DRAFT else height / 2)
    left_s, right_s = max(span.start_s, start_s), min(span.end_s, end_s)
    bar_ms = ((left_s - start_s) * 1e3, (right_s - left_s) * 1e3)
    axes.broken_barh(
        [bar_ms], (middle - height / 2, height), facecolors=PHASE_COLOURS[span.phase], edgecolor="white", linewidth=0.5
    )
    if right_s - left_s > _LEAST_WIDTH * (end_s - start_s):
        centre = bar_ms[0] + bar_ms[1] / 2
        axes.text(centre, middle, str(span.rows), ha="center", va="center", fontsize=7, color="white")
