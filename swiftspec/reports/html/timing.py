"""Sections about time: ten rounds, the parts of a round, and the provenance of the predicted time."""

from collections.abc import Mapping, Sequence

from swiftspec.reports.formatting import count, milliseconds, percent
from swiftspec.reports.html.charts import Segment, legend, stacked_bar, swatch, timeline_tracks
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.reports.html.parts import Column, View, scrolling, section, table
from swiftspec.reports.html.rounds import Item, time_per_round
from swiftspec.reports.html.sources import Source
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase

__all__ = ["breakdown", "provenance_shares", "ten_rounds"]

_ROUNDS = 10
_LEAST_SHADE = 0.3


def ten_rounds(view: View) -> Markup | None:
    """Timeline of draft and target over ten rounds."""
    timeline = view.timeline
    if timeline is None or not timeline.verifications_s:
        return None
    excerpt = timeline.excerpt(num_rounds=_ROUNDS)
    rounds = count(min(_ROUNDS, len(timeline.verifications_s)), "round")
    length = milliseconds(excerpt.end_s - excerpt.start_s)
    label = f"{rounds} of {timeline.request}, {length} ms: {_busy(view)}"
    chart = timeline_tracks(excerpt, timeline.process_names, label=label)
    phases = [phase for phase in Phase if any(span.phase is phase for span in excerpt.spans)]
    return section(
        "timeline",
        f"{rounds[0].upper()}{rounds[1:]} of the plan",
        element("p", f"Prompt {timeline.request}, simulated: {length} ms, time in ms.", class_="quiet"),
        scrolling(element("div", chart, class_="plot wide"), label=label),
        legend([Segment(phase, 0.0, phase, phase) for phase in phases]),
        sources=(Source.SIMULATION, Source.LATENCIES),
    )


def _busy(view: View) -> str:
    metrics = view.plan.chosen.prediction.metrics
    return f"target computes {percent(metrics.target_busy)} of the time, draft {percent(metrics.draft_busy)}"


def breakdown(view: View) -> Markup | None:
    """Time per round as a bar for every process, and in numbers."""
    if view.timeline is None:
        return None
    items = time_per_round(view.timeline, view.plan.chosen, view.profile)
    if not items:
        return None
    bars = [_process(name, found) for name, found in items.items()]
    intro = f"Prompt {view.timeline.request}, per round, from its first verification to its last token. {_tail(view)}"
    return section(
        "round",
        "Where a round's time goes",
        element("p", intro, class_="quiet"),
        element("div", *bars, class_="processes"),
        sources=(Source.SIMULATION, Source.LATENCIES),
    )


def _tail(view: View) -> str:
    """The serial tail in a sentence, if there is one."""
    metrics = view.plan.chosen.prediction.metrics
    if metrics.tail_s is None:
        return ""
    median, p95 = milliseconds(metrics.tail_s.median), milliseconds(metrics.tail_s.p95)
    hits = f", in {percent(metrics.hit_fraction)} of rounds" if metrics.hit_fraction is not None else ""
    return f"On a hit{hits}, the serial tail from verdict to next rows takes {median} ms (p95 {p95})."


def _process(name: str, items: Sequence[Item]) -> Markup:
    total_s = sum(item.seconds for item in items)
    segments = _segments(items)
    label = f"{name}: {milliseconds(total_s)} ms per round"
    rows = [
        (
            join((swatch(segment.paint, shade=segment.shade), item.name)),
            milliseconds(item.seconds),
            percent(item.seconds / total_s),
            item.provenance or "from the rest",
        )
        for item, segment in zip(items, segments, strict=True)
    ]
    columns = (
        Column(heading="what"),
        Column(heading="ms", numeric=True),
        Column(heading="share", numeric=True),
        Column(heading="known by"),
    )
    body = table(label, columns, rows, titled=True)
    return element("div", element("h3", label), stacked_bar(segments, label=label), body, class_="process")


def _segments(items: Sequence[Item]) -> list[Segment]:
    """One colour per phase; the operations of a composed forward in paler and paler shades of it."""
    sizes = {phase: sum(item.phase is phase for item in items) for phase in Phase}
    met = dict.fromkeys(Phase, 0)
    segments = []
    for item in items:
        title = f"{item.name}: {milliseconds(item.seconds)} ms"
        if item.phase is None:
            segments.append(Segment(item.name, item.seconds, "between", title))
            continue
        paler = met[item.phase] / sizes[item.phase] * (1 - _LEAST_SHADE)
        met[item.phase] += 1
        segments.append(Segment(item.name, item.seconds, item.phase, title, round(1 - paler, 2)))
    return segments


def provenance_shares(view: View) -> Markup:
    """Shares of the chosen candidate's predicted time by provenance."""
    shares = view.plan.chosen.prediction.provenance
    segments = [
        Segment(f"{provenance} {percent(share)}", share, provenance, f"{provenance}: {percent(share)}")
        for provenance, share in _ordered(shares)
    ]
    label = "Predicted time rests on " + ", ".join(segment.name for segment in segments)
    return section(
        "provenance",
        "What the prediction rests on",
        element("p", "Share of the predicted seconds, both roles together, best known first.", class_="quiet"),
        stacked_bar(segments, label=label),
        legend(segments),
        sources=(Source.LATENCIES,),
    )


def _ordered(shares: Mapping[Provenance, float]) -> list[tuple[Provenance, float]]:
    return [(provenance, shares[provenance]) for provenance in Provenance if shares.get(provenance, 0.0) > 0]
