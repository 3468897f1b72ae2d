from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.workload import MOST_REQUESTS, RequestClass, Workload
from swiftspec.files.document import file_sha256
from swiftspec.workload import replay
from swiftspec.workload.load_traces import TraceRow
from swiftspec.workload.replay import shared_stretches
from tests.workload import samples
from tests.workload.samples import MOONCAKE, QWEN, written

HEADER = "Timestamp,Request tokens,Response tokens\n"


def burst(folder: Path, times_s: Sequence[float], *, outputs: Sequence[int] | None = None) -> Path:
    """A BurstGPT file; prompts have 1, 2, 3, .. tokens."""
    outputs = outputs or [1] * len(times_s)
    rows = zip(times_s, outputs, strict=True)
    lines = [f"{time_s},{number},{output}\n" for number, (time_s, output) in enumerate(rows, start=1)]
    return written(folder, "burst.csv", HEADER + "".join(lines))


def arrivals(made: Workload) -> list[float]:
    return [request.arrival_s for request in made.requests]


def numbers(made: Workload) -> list[int]:
    """Which rows were taken."""
    return [request.prompt_tokens for request in made.requests]


def test_a_replay_has_the_traces_arrivals_and_lengths(tmp_path: Path) -> None:
    path = written(tmp_path, "conv.csv", samples.AZURE)
    made = replay("azure", path)
    assert arrivals(made) == pytest.approx([0.0, 0.052, 0.098189, 29.479069], abs=1e-9)
    assert (made.requests[0].prompt_tokens, made.requests[0].output_tokens) == (4808, 10)
    assert made.rate == pytest.approx(4 / 29.479069)
    assert str(made.arrivals) == str(made.prompt_tokens) == "replay"
    assert made.trace is not None
    assert (made.trace.format, made.trace.file, made.trace.sha256) == ("azure", "conv.csv", file_sha256(path))
    assert made.trace.licence.startswith("CC-BY 4.0")


def test_a_replay_survives_its_file(tmp_path: Path) -> None:
    made = replay("adaserve", written(tmp_path, "list.json", samples.ADASERVE), rate=2.0)
    made.save(tmp_path / "w.json")
    assert Workload.load(tmp_path / "w.json") == made


def test_sessions_are_kept_and_failures_counted(tmp_path: Path) -> None:
    made = replay("burstgpt", written(tmp_path, "b.csv", samples.BURSTGPT))
    assert arrivals(made) == [0.0, 82.0, 144.0]
    assert [request.conversation is not None for request in made.requests] == [True, True, False]
    assert made.trace is not None
    assert made.trace.left_out == {"without output tokens": 1}


def test_times_count_from_the_first_row_even_if_that_is_left_out(tmp_path: Path) -> None:
    made = replay("burstgpt", burst(tmp_path, [100, 101, 103], outputs=[0, 1, 1]))
    assert (arrivals(made), numbers(made)) == ([1.0, 3.0], [2, 3])


@pytest.mark.parametrize(
    ("window", "taken", "arrivals_s"),
    [
        ({}, [1, 2, 3, 4, 5], [0.0, 10.0, 20.0, 20.0, 30.0]),
        ({"start_s": 10.0}, [2, 3, 4, 5], [0.0, 10.0, 10.0, 20.0]),
        ({"start_s": 5.0}, [2, 3, 4, 5], [5.0, 15.0, 15.0, 25.0]),
        ({"duration_s": 20.0}, [1, 2], [0.0, 10.0]),
        ({"start_s": 10.0, "duration_s": 15.0}, [2, 3, 4], [0.0, 10.0, 10.0]),
        ({"num_requests": 3}, [1, 2, 3], [0.0, 10.0, 20.0]),
        ({"start_s": 15.0, "num_requests": 1}, [3], [5.0]),
        ({"num_requests": 99}, [1, 2, 3, 4, 5], [0.0, 10.0, 20.0, 20.0, 30.0]),
    ],
)
def test_a_part_may_be_taken(tmp_path: Path, window: dict[str, Any], taken: list[int], arrivals_s: list[float]) -> None:
    made = replay("burstgpt", burst(tmp_path, [50, 60, 70, 70, 80]), **window)
    assert (numbers(made), arrivals(made)) == (taken, arrivals_s)
    assert made.trace is not None
    assert (made.trace.start_s, made.trace.duration_s) == (window.get("start_s", 0.0), window.get("duration_s"))


def test_the_time_axis_is_stretched_to_a_rate(tmp_path: Path) -> None:
    path = burst(tmp_path, [0, 1, 1, 10])
    made = replay("burstgpt", path, rate=8.0)
    assert arrivals(made) == pytest.approx([0.0, 0.05, 0.05, 0.5])
    assert made.rate == 8.0
    assert made.gap_cv == pytest.approx(replay("burstgpt", path).gap_cv)
    assert made.trace is not None
    assert made.trace.rate == 8.0


def test_rows_after_the_part_are_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "b.csv", HEADER + "0,1,1\n1,1,1\n2,nonsense,1\n")
    assert len(replay("burstgpt", path, num_requests=2).requests) == 2
    assert len(replay("burstgpt", path, num_requests=1).requests) == 1


def test_classes_are_assigned_by_share_at_random(tmp_path: Path) -> None:
    path = burst(tmp_path, range(100))
    classes = [RequestClass(name="chat", tpot_s=0.05, share=0.3), RequestClass(name="batch")]
    made = replay("burstgpt", path, classes=classes)
    assert made.num_by_class == {"chat": 30, "batch": 70}
    names = [request.class_name for request in made.requests]
    assert names == [request.class_name for request in replay("burstgpt", path, classes=classes).requests]
    assert names != [request.class_name for request in replay("burstgpt", path, classes=classes, seed=1).requests]


def test_a_trace_with_classes_keeps_them_and_takes_limits(tmp_path: Path) -> None:
    path = written(tmp_path, "list.json", samples.ADASERVE)
    assert replay("adaserve", path).num_by_class == {"slo-1.2x": 1, "slo-150ms": 1, "slo-50ms": 1}
    made = replay("adaserve", path, classes=[RequestClass(name="slo-1.2x", tpot_s=0.036)])
    limits = {made.class_of(request).name: made.class_of(request).tpot_s for request in made.requests}
    assert limits == {"slo-1.2x": 0.036, "slo-150ms": 0.15, "slo-50ms": 0.05}


@pytest.mark.parametrize(
    ("classes", "complaint"),
    [
        ([RequestClass(name="chat")], "class 'chat' is not in "),
        ([RequestClass(name="slo-50ms", share=0.5)], "share of class slo-50ms is 0.5, but "),
        ([RequestClass(name="slo-50ms"), RequestClass(name="slo-50ms")], "classes has 'slo-50ms' 2 times"),
    ],
)
def test_classes_that_a_trace_does_not_have_are_named(
    tmp_path: Path, classes: list[RequestClass], complaint: str
) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        replay("adaserve", written(tmp_path, "list.json", samples.ADASERVE), classes=classes)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"start_s": -1.0}, "start_s is -1; expected 0 or more"),
        ({"duration_s": 0.0}, "duration_s is 0; expected more than 0"),
        ({"num_requests": 0}, "num_requests is 0; expected 1 to 50000"),
        ({"rate": 0.0}, "rate is 0; expected 0.0001 to 1e+06 requests per second"),
        ({"rate": -2.0}, "rate is -2; expected"),
        ({"seed": -1}, "seed is -1; expected 0 or more"),
    ],
)
def test_a_part_that_cannot_be_is_named(tmp_path: Path, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=r" is ") as caught:
        replay("burstgpt", burst(tmp_path, [0, 1, 2]), **arguments)
    assert str(caught.value).startswith(complaint)


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ValueError, match=r"^format_name is 'splitwise'; expected one of azure, burstgpt, mooncake, ad"):
        replay("splitwise", "f")


@pytest.mark.parametrize(
    ("times_s", "window", "complaint"),
    [
        ([], {}, "no request arrives from 0 s on; expected at least one"),
        ([0, 1], {"start_s": 5.0}, "no request arrives from 5 s on; expected"),
        ([0, 9], {"start_s": 5.0, "duration_s": 3.0}, "no request arrives from 5 s on, for 3 s; expected"),
    ],
)
def test_a_part_without_requests_is_named(
    tmp_path: Path, times_s: list[float], window: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"burst\.csv: ") as caught:
        replay("burstgpt", burst(tmp_path, times_s), **window)
    assert str(caught.value).startswith(f"{tmp_path / 'burst.csv'}: {complaint}")


def test_a_row_that_is_earlier_than_the_one_above_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"burst\.csv, line 4: Timestamp is 2\.5 s before that of the row above; exp"):
        replay("burstgpt", burst(tmp_path, [0, 3, 0.5]))


def test_a_window_of_too_many_requests_is_named(tmp_path: Path) -> None:
    path = burst(tmp_path, range(MOST_REQUESTS + 1))
    with pytest.raises(ValueError, match=f"line {MOST_REQUESTS + 2}: more than 50000 requests; take the first ones"):
        replay("burstgpt", path)
    assert len(replay("burstgpt", path, num_requests=MOST_REQUESTS).requests) == MOST_REQUESTS


def test_arrivals_centuries_later_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"burst\.csv: requests\[1\]\.arrival_s is 1000000000000\.0; "):
        replay("burstgpt", burst(tmp_path, [0, 1e12]))


def row(prompt_tokens: int, *blocks: int) -> TraceRow:
    return TraceRow(
        where="here", time_s=0.0, prompt_tokens=prompt_tokens, output_tokens=1, blocks=blocks, block_tokens=512
    )


def test_blocks_that_prompts_share_are_stretches() -> None:
    rows = [row(2000, 0, 1, 2, 3), row(2100, 0, 1, 2, 3, 4), row(1100, 0, 1, 9), row(900, 0, 7), row(700, 5, 6)]
    assert list(shared_stretches(rows)) == [
        [("block-0", 512), ("block-1", 512), ("block-2", 976)],
        [("block-0", 512), ("block-1", 512), ("block-2", 1024)],
        [("block-0", 512), ("block-1", 512)],
        [("block-0", 512)],
        [],
    ]


def test_mooncakes_prompts_share_their_first_block(tmp_path: Path) -> None:
    made = replay("mooncake", written(tmp_path, "m.jsonl", MOONCAKE))
    assert {request.shared for request in made.requests} == {(("block-0", 512),)}
    assert made.repeated_share == pytest.approx(6 * 512 / sum(each.prompt_tokens for each in made.requests))


def test_blocks_that_are_none_are_one_sentence(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": ["a"]}'
    with pytest.raises(ValueError, match=r"line 1: hash_ids is \['a'\]; expected a list of whole numbers"):
        replay("mooncake", written(tmp_path, "m.jsonl", line))


def test_qwens_prompts_share_blocks_of_sixteen_tokens(tmp_path: Path) -> None:
    made = replay("mooncake", written(tmp_path, "q.jsonl", QWEN))
    assert [request.shared for request in made.requests] == [(("block-0", 48),), (("block-0", 48),)]
    assert [request.arrival_s for request in made.requests] == pytest.approx([0.0, 61.114])


def test_a_unit_that_a_format_does_not_need_is_refused(tmp_path: Path) -> None:
    for name, unit in (("burstgpt", "s"), ("mooncake", "h")):
        with pytest.raises(ValueError, match=rf"time_unit is '{unit}'; expected s or ms, of stamps in the format moon"):
            replay(name, written(tmp_path, "f", MOONCAKE), time_unit=unit)
