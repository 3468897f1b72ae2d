"""Timelines as Chrome trace JSON, which ui.perfetto.dev opens: a process for each role, the timeline's phase names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swiftspec.files.writing import write_output
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Timeline, targets_first

Process = tuple[Role, int]  # with its group
_LANES_APART = 1000  # in the numbers of tracks


def to_events(
    timelines: Sequence[Timeline], *, names: Mapping[Process, str] | None = None, together: bool = False
) -> list[dict[str, Any]]:
    """Complete events in microseconds from the first request's start, and the tracks' names.

    names: names of processes; by default the role, with the number of a further target group.
    together: whether the requests were served together: those that overlap then have tracks of their own. Otherwise
        every process has one track, and a request that would overlap the previous one, as simulated ones do, each with
        its own clock, is moved after it. Requests that share a clock keep their distance.
    """
    processes = {process for timeline in timelines for process in timeline.processes}
    pids = {process: number for number, process in enumerate(targets_first(processes), start=1)}
    lanes = _lanes(timelines) if together else [0] * len(timelines)
    events = [
        event
        for process, pid in pids.items()
        for event in _metadata(pid, process[0], (names or {}).get(process, _name(process)), 1 + max(lanes, default=0))
    ]
    origin_s = timelines[0].start_s if timelines else 0.0
    ends_s: dict[Process, float] = {}
    for timeline, lane in zip(timelines, lanes, strict=True):
        shift_s = 0.0 if together else _shift_s(timeline, ends_s)
        for span in sorted(timeline.spans, key=lambda span: span.start_s):
            process = (span.role, span.group)
            start_ns, end_ns = (round((at_s + shift_s - origin_s) * 1e9) for at_s in (span.start_s, span.end_s))
            tokens = {"tokens": span.tokens} if span.tokens else {}
            events.append(
                {
                    "ph": "X",
                    "cat": "phase",
                    "name": span.phase.value,
                    "pid": pids[process],
                    "tid": pids[process] + lane * _LANES_APART,
                    "ts": start_ns / 1000,
                    "dur": (end_ns - start_ns) / 1000,
                    "args": {"request": timeline.request, "model": span.model.value, "rows": span.rows} | tokens,
                }
            )
            ends_s[process] = span.end_s + shift_s
    return events


def save_timelines(
    path: Path, timelines: Sequence[Timeline], *, names: Mapping[Process, str] | None = None, together: bool = False
) -> None:
    """Write `to_events` whole or not at all."""
    content = {"displayTimeUnit": "ms", "traceEvents": to_events(timelines, names=names, together=together)}
    write_output(path, json.dumps(content, allow_nan=False).encode() + b"\n")


def _name(process: Process) -> str:
    role, group = process
    return f"{role} {group}" if group else role.value


def _shift_s(timeline: Timeline, ends_s: Mapping[Process, float]) -> float:
    """Seconds by which a request must move so that it overlaps no earlier one; 0 if it overlaps none."""
    first_s: dict[Process, float] = {}
    for span in timeline.spans:
        process = (span.role, span.group)
        first_s[process] = min(span.start_s, first_s.get(process, span.start_s))
    return max([0.0, *(ends_s.get(process, start_s) - start_s for process, start_s in first_s.items())])


def _lanes(timelines: Sequence[Timeline]) -> list[int]:
    """The first lane that is free when each request comes, in the order of `timelines`."""
    free_s: list[float] = []  # of every lane
    lanes = [0] * len(timelines)
    for index in sorted(range(len(timelines)), key=lambda index: timelines[index].start_s):
        timeline = timelines[index]
        end_s = max((span.end_s for span in timeline.spans), default=timeline.start_s)
        lane = next((lane for lane, at_s in enumerate(free_s) if at_s <= timeline.start_s), len(free_s))
        free_s[lane : lane + 1] = [end_s]
        lanes[index] = lane
    return lanes


def _metadata(pid: int, role: Role, name: str, num_lanes: int) -> list[dict[str, Any]]:
    process = {"ph": "M", "pid": pid, "tid": pid}
    threads = [f"{role}, request {lane + 1}" for lane in range(num_lanes)] if num_lanes > 1 else [role.value]
    return [
        process | {"name": "process_name", "args": {"name": name}},
        process | {"name": "process_sort_index", "args": {"sort_index": pid}},
        *(
            process | {"tid": pid + lane * _LANES_APART, "name": "thread_name", "args": {"name": thread}}
            for lane, thread in enumerate(threads)
        ),
    ]
