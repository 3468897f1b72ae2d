"""Time of a round by process: its phases from the first verification on, and its forwards by operation."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.profile import Profile
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline

__all__ = ["BETWEEN", "Item", "time_per_round"]

BETWEEN = "between phases"
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


def time_per_round(timeline: Timeline, candidate: Candidate, profile: Profile) -> dict[str, list[Item]]:
    """Items that add up to the mean round, by the name of the process; empty if there are no rounds."""
    starts_s = timeline.verifications_s
    if not starts_s:
        return {}
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
    if phase not in COMPUTING:
        return profile.host_latency(phase, rows=max(1, rows), policy=candidate.policy) or _FREE
    policy, model = candidate.build(), spans[0].model
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
    return profile.step(key)
