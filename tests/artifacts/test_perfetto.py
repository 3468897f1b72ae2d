import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from swiftspec.policies.effects import Role
from swiftspec.timing.perfetto import save_timelines, to_events
from swiftspec.timing.timeline import Phase, Span, Timeline
from tests.cli.samples import parallel_timeline, serial_timeline


def slices(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Complete events by track, as they come."""
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def overlaps(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Neighbours on a track of which the second starts over a nanosecond before the first ends."""
    return [
        (before, after)
        for track in slices(events).values()
        for before, after in pairwise(track)
        if after["ts"] < before["ts"] + before["dur"] - 1e-3
    ]


def test_span_becomes_a_slice_in_microseconds() -> None:
    span = Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 8, 0, 2.0015, 2.0040)
    events = to_events([Timeline(request="a", start_s=2.0, spans=(span,))])
    assert [event for event in events if event["ph"] == "X"] == [
        {
            "ph": "X",
            "cat": "phase",
            "name": "verify",
            "pid": 1,
            "tid": 1,
            "ts": 1500.0,
            "dur": 2500.0,
            "args": {"request": "a", "model": "target", "rows": 8},
        }
    ]


def test_commit_says_how_many_tokens() -> None:
    (commit, *_) = [event for event in to_events([parallel_timeline()]) if event["name"] == "commit"]
    assert commit["args"]["tokens"] == 3


def test_target_groups_have_tracks_of_their_own() -> None:
    spans = tuple(Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 2, 0, 0.1, 0.2, rank) for rank in (0, 1))
    events = to_events([Timeline(request="a", start_s=0.0, spans=spans)])
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {1: "target", 2: "target 1"}
    assert len(slices(events)) == 2
    assert not overlaps(events)


def test_each_process_has_a_track_and_a_name() -> None:
    names = {(Role.TARGET, 0): "target (pid 7)"}
    events = to_events([parallel_timeline()], names=names)
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {1: "target (pid 7)", 2: "draft"}
    assert {track: {event["name"] for event in on} for track, on in slices(events).items()} == {
        (1, 1): {"verify", "send", "commit"},
        (2, 2): {"expand", "wait", "send"},
    }


def test_requests_that_were_served_together_keep_their_times_on_tracks_of_their_own() -> None:
    timelines = [parallel_timeline("a"), parallel_timeline("b"), parallel_timeline("c", start_s=99.0)]
    events = to_events(timelines, together=True)
    assert not overlaps(events)
    starts: dict[str, list[float]] = defaultdict(list)
    lanes: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            starts[event["args"]["request"]].append(event["ts"])
            lanes[event["args"]["request"]].add(event["tid"])
    assert starts["a"] == starts["b"]
    assert lanes == {"a": {1, 2}, "b": {1001, 1002}, "c": {1, 2}}
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {1: "target, request 1", 1001: "target, request 2", 2: "draft, request 1", 1002: "draft, request 2"}


def test_colocated_process_is_one_track_with_both_models() -> None:
    (track,) = slices(to_events([serial_timeline()])).values()
    assert {(event["name"], event["args"]["model"]) for event in track} >= {("expand", "draft"), ("verify", "target")}


def test_requests_on_one_clock_keep_their_distance() -> None:
    events = to_events([serial_timeline("a"), serial_timeline("b", start_s=9.0)])
    first = next(event for event in events if event["ph"] == "X" and event["args"]["request"] == "b")
    assert first["ts"] == pytest.approx(9e6)


@pytest.mark.parametrize("make", [serial_timeline, parallel_timeline])
def test_requests_with_a_clock_each_come_after_each_other(make: Any) -> None:
    events = to_events([make("a"), make("b"), make("c")])
    assert overlaps(events) == []
    assert [len(track) for track in slices(events).values()] == [
        3 * len(track) for track in slices(to_events([make()])).values()
    ]


def test_no_timelines_no_events() -> None:
    assert to_events([]) == []


def test_file_is_chrome_trace_json(tmp_path: Path) -> None:
    save_timelines(tmp_path / "run.json", [parallel_timeline()])
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["traceEvents"] == to_events([parallel_timeline()])
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
