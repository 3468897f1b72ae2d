"""Timelines as Chrome trace JSON, which ui.perfetto.dev opens: one track per process, the timeline's phase names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swiftspec.artifacts.timeline import Timeline
from swiftspec.files.writing import write_output
from swiftspec.policies.effects import Role

__all__ = ["save_timelines", "to_events"]

Process = tuple[Role, int]  # with its group


def to_events(timelines: Sequence[Timeline], *, names: Mapping[Process, str] | None = None) -> list[dict[str, Any]]:
    """Complete events in microseconds from the first request's start, and the tracks' names.

    Requests that share a clock keep their distance. One that would overlap the previous one on a track, as simulated
    ones do, each with its own clock, is moved after it.

    Parameters
    ----------
    names : mapping, optional
        Names of processes; by default the role, with the number of a further target group.
    """
    tracks = {process: number for number, process in enumerate(_processes(timelines), start=1)}
    events = [
        event
        for process, number in tracks.items()
        for event in _metadata(number, process[0], (names or {}).get(process, _name(process)))
    ]
    origin_s = timelines[0].start_s if timelines else 0.0
    ends_s: dict[Process, float] = {}
    for timeline in timelines:
        shift_s = _shift_s(timeline, ends_s)
        for span in sorted(timeline.spans, key=lambda span: span.start_s):
            process = (span.role, span.group)
            start_ns, end_ns = (round((at_s + shift_s - origin_s) * 1e9) for at_s in (span.start_s, span.end_s))
            arguments = {"request": timeline.request, "model": span.model.value, "rows": span.rows}
            if span.tokens:
                arguments["tokens"] = span.tokens
            events.append(_slice(tracks[process], span.phase.value, start_ns, end_ns, arguments))
            ends_s[process] = span.end_s + shift_s
    return events


def save_timelines(path: Path, timelines: Sequence[Timeline], *, names: Mapping[Process, str] | None = None) -> None:
    """Write `to_events` whole or not at all."""
    content = {"displayTimeUnit": "ms", "traceEvents": to_events(timelines, names=names)}
    write_output(path, json.dumps(content, allow_nan=False).encode() + b"\n")


def _name(process: Process) -> str:
    role, group = process
    return f"{role} {group}" if group else role.value


def _processes(timelines: Sequence[Timeline]) -> list[Process]:
    """Processes in the order of the tracks: targets first."""
    present = {process for timeline in timelines for process in timeline.processes}
    return sorted(present, key=lambda process: (list(Role).index(process[0]), process[1]))


def _shift_s(timeline: Timeline, ends_s: Mapping[Process, float]) -> float:
    """Seconds by which a request must move so that it overlaps no earlier one; 0 if it overlaps none."""
    first_s: dict[Process, float] = {}
    for span in timeline.spans:
        process = (span.role, span.group)
        first_s[process] = min(span.start_s, first_s.get(process, span.start_s))
    return max([0.0, *(ends_s.get(process, start_s) - start_s for process, start_s in first_s.items())])


def _metadata(number: int, role: Role, name: str) -> list[dict[str, Any]]:
    track = {"ph": "M", "pid": number, "tid": number}
    return [
        track | {"name": "process_name", "args": {"name": name}},
        track | {"name": "process_sort_index", "args": {"sort_index": number}},
        track | {"name": "thread_name", "args": {"name": role.value}},
    ]


def _slice(number: int, phase: str, start_ns: int, end_ns: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "phase",
        "name": phase,
        "pid": number,
        "tid": number,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": arguments,
    }
