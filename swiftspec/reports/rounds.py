"""Sections about rounds: ten of them over time, and where the time of one goes, by phase and operation."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import count, milliseconds, percent
from swiftspec.reports.model import Bar, Section, Segment, Source, Table, Tracks, numbers, row, texts
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline

BETWEEN = "between phases"
_ROUNDS = 10
_LEAST_SHADE = 0.3
_LEAST_S = 1e-7  # anything below is rounding
_FREE = Latency((0.0,), Provenance.ASSUMED)


class Item(NamedTuple):
    """Seconds per round of one phase, or of one operation of a composed forward.

    name: `verify`, `verify: qkv`, or BETWEEN, the host's time before a forward. provenance: None if the time follows
    from the other items, as that of waiting does.
    """

    name: str
    seconds: float
    phase: Phase | None
    provenance: Provenance | None


def rounds(plan: Plan, profile: Profile, timeline: Timeline) -> list[Section]:
    """Draft and target over ten rounds, and the time of a mean one; nothing of a timeline without rounds."""
    if not timeline.verifications_s:
        return []
    excerpt, metrics = timeline.excerpt(num_rounds=_ROUNDS), plan.chosen.prediction.metrics
    number = count(min(_ROUNDS, len(timeline.verifications_s)), "round")
    length_ms = milliseconds(excerpt.end_s - excerpt.start_s)
    label = (
        f"{number} of {timeline.request}, {length_ms} ms: target computes {percent(metrics.target_busy)} of the time, "
        f"draft {percent(metrics.draft_busy)}"
    )
    over_time = Section(
        key="timeline",
        title=f"{number} of the plan",
        caption=f"Prompt {timeline.request}, simulated: {length_ms} ms, time in ms.",
        parts=[Tracks(excerpt=excerpt, names=timeline.process_names, label=label)],
        sources=(Source.SIMULATION, Source.LATENCIES),
    )
    intro = f"Prompt {timeline.request}, per round, from its first verification to its last token."
    of_a_round = Section(
        key="round",
        title="Where a round's time goes",
        caption=f"{intro} {_tail(plan)}",
        parts=[_process(*found) for found in time_per_round(timeline, plan.chosen, profile).items()],
        sources=(Source.SIMULATION, Source.LATENCIES),
    )
    return [over_time, of_a_round]


def _tail(plan: Plan) -> str:
    """The serial tail in a sentence, if there is one."""
    metrics = plan.chosen.prediction.metrics
    if metrics.tail_s is None:
        return ""
    median, p95 = milliseconds(metrics.tail_s.median), milliseconds(metrics.tail_s.p95)
    hits = f", in {percent(metrics.hit_fraction)} of rounds" if metrics.hit_fraction is not None else ""
    return f"On a hit{hits}, the serial tail from verdict to next rows takes {median} ms (p95 {p95})."


def _process(name: str, items: Sequence[Item]) -> Bar:
    total_s, segments = sum(item.seconds for item in items), _segments(items)
    rows = [
        row(segment, milliseconds(item.seconds), percent(item.seconds / total_s), item.provenance or "from the rest")
        for item, segment in zip(items, segments, strict=True)
    ]
    title = f"{name}: {milliseconds(total_s)} ms per round"
    columns = (*texts("what"), *numbers("ms", "share"), *texts("known by"))
    return Bar(title=title, segments=segments, table=Table(title=title, columns=columns, rows=rows))


def _segments(items: Sequence[Item]) -> list[Segment]:
    """One colour per phase; the operations of a composed forward in paler and paler shades of it."""
    sizes = {phase: sum(item.phase is phase for item in items) for phase in Phase}
    met = dict.fromkeys(Phase, 0)
    segments = []
    for item in items:
        text = f"{milliseconds(item.seconds)} ms"
        if item.phase is None:
            segments.append(Segment(item.name, item.seconds, text, "between"))
            continue
        paler = met[item.phase] / sizes[item.phase] * (1 - _LEAST_SHADE)
        met[item.phase] += 1
        segments.append(Segment(item.name, item.seconds, text, item.phase, round(1 - paler, 2)))
    return segments


def time_per_round(timeline: Timeline, candidate: Candidate, profile: Profile) -> dict[str, list[Item]]:
    """Items that add up to the mean round of a timeline with rounds, by the name of the process."""
    starts_s = timeline.verifications_s
    start_s, end_s = starts_s[0], timeline.commits[-1].end_s
    context = sum(span.rows for span in timeline.phase(Phase.PREFILL)[:1]) + timeline.num_tokens // 2
    items: dict[str, list[Item]] = {}
    for process, name in zip(timeline.processes, timeline.process_names, strict=True):
        spans = [
            span._replace(end_s=min(span.end_s, end_s))
            for span in timeline.spans
            if (span.role, span.group) == process and start_s <= span.start_s < end_s
        ]
        found = list(_items(spans, candidate, profile, context=context))
        idle_s = end_s - start_s - sum(item.seconds for item in found)
        found.append(Item(BETWEEN, max(0.0, idle_s), None, None))
        items[name] = [item._replace(seconds=item.seconds / len(starts_s)) for item in found if item.seconds > _LEAST_S]
    return items


def _items(spans: Sequence[Span], candidate: Candidate, profile: Profile, *, context: int) -> Iterator[Item]:
    order = list(Phase)
    for phase, group in groupby(sorted(spans, key=lambda span: order.index(span.phase)), key=lambda span: span.phase):
        of_phase = list(group)
        seconds = sum(span.end_s - span.start_s for span in of_phase)
        latency = _latency(of_phase, candidate, profile, context=context)
        if latency is None or not latency.parts:
            yield Item(phase, seconds, phase, latency.provenance if latency else None)
            continue
        total_s = sum(part.seconds for part in latency.parts)
        for part in sorted(latency.parts, key=lambda part: -part.seconds):
            yield Item(f"{phase}: {part.name}", seconds * part.seconds / total_s, phase, part.provenance)


def _latency(spans: Sequence[Span], candidate: Candidate, profile: Profile, *, context: int) -> Latency | None:
    """Latency of a phase in the profile at its typical number of rows; None for waiting."""
    phase, rows = spans[0].phase, sorted(span.rows for span in spans)[len(spans) // 2]
    if phase is Phase.WAIT:
        return None
    policy, model = candidate.build(), spans[0].model
    latencies = profile.latencies.of(model, policy.layout)
    if phase not in COMPUTING:
        return latencies.host_latency(phase, rows=max(1, rows), policy=candidate.policy) or _FREE
    disaggregated = policy.layout is Layout.DISAGGREGATED
    groups = policy.target_groups if model is Role.TARGET else 1
    holder = model if disaggregated else Role.TARGET
    key = StepKey(
        model,
        phase,
        degree=len(candidate.groups[holder]) // groups,
        rows=max(1, rows),
        context=0 if phase is Phase.PREFILL else context,
        ranks=candidate.ranks.get(holder, 1),
        peer_busy=disaggregated,
    )
    return latencies.step(key)
