"""Timelines as Chrome trace JSON, which ui.perfetto.dev opens: one track per process, the timeline's phase names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swiftspec.documents import write_atomically
from swiftspec.policies.effects import Role
from swiftspec.timeline import Timeline

__all__ = ["save_timelines", "to_events"]

_NUMBER = {role: number for number, role in enumerate(Role, start=1)}


def to_events(timelines: Sequence[Timeline], *, names: Mapping[Role, str] | None = None) -> list[dict[str, Any]]:
    """Complete events in microseconds from the first request's start, and the tracks' names.

    Requests keep their distance where they share a clock. One that would overlap the previous one on a track, as
    simulated ones do, each with a clock of its own, is moved behind it.

    Parameters
    ----------
    names : mapping, optional
        What to call a role's process; the role's own name if absent.
    """
    roles = [role for role in Role if any(timeline.of(role) for timeline in timelines)]
    events = [event for role in roles for event in _metadata(role, (names or {}).get(role, role.value))]
    origin_s = timelines[0].start_s if timelines else 0.0
    ends_s: dict[Role, float] = {}
    for timeline in timelines:
        shift_s = _shift_s(timeline, ends_s)
        for role in roles:
            for span in sorted(timeline.of(role), key=lambda span: span.start_s):
                start_ns, end_ns = (round((at_s + shift_s - origin_s) * 1e9) for at_s in (span.start_s, span.end_s))
                arguments = {"request": timeline.request, "model": span.model.value, "rows": span.rows}
                if span.tokens:
                    arguments["tokens"] = span.tokens
                events.append(_slice(role, span.phase.value, start_ns, end_ns, arguments))
                ends_s[role] = span.end_s + shift_s
    return events


def save_timelines(path: Path, timelines: Sequence[Timeline], *, names: Mapping[Role, str] | None = None) -> None:
    """Write `to_events` whole or not at all."""
    content = {"displayTimeUnit": "ms", "traceEvents": to_events(timelines, names=names)}
    write_atomically(path, json.dumps(content, allow_nan=False).encode() + b"\n")


def _shift_s(timeline: Timeline, ends_s: Mapping[Role, float]) -> float:
    """Seconds by which a request must move so that it overlaps nothing before it; 0 if it does not."""
    first_s: dict[Role, float] = {}
    for span in timeline.spans:
        first_s[span.role] = min(span.start_s, first_s.get(span.role, span.start_s))
    return max([0.0, *(ends_s.get(role, start_s) - start_s for role, start_s in first_s.items())])


def _metadata(role: Role, name: str) -> list[dict[str, Any]]:
    number = _NUMBER[role]
    track = {"ph": "M", "pid": number, "tid": number}
    return [
        track | {"name": "process_name", "args": {"name": name}},
        track | {"name": "process_sort_index", "args": {"sort_index": number}},
        track | {"name": "thread_name", "args": {"name": role.value}},
    ]


def _slice(role: Role, phase: str, start_ns: int, end_ns: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "phase",
        "name": phase,
        "pid": _NUMBER[role],
        "tid": _NUMBER[role],
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": arguments,
    }
