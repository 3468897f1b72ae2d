import time
from collections import Counter
from typing import Any

import pytest
import torch

from swiftspec.profiler.op_timer import OpTimer, Timing, cache_bytes, num_copies

CPU = torch.device("cpu")
BRIEF: dict[str, Any] = {"warm_up_s": 0.0, "budget_s": 0.0}


def test_a_timing_is_median_and_20_to_80_percent() -> None:
    timing = Timing.of(float(value) for value in range(11))
    assert (timing.low_s, timing.median_s, timing.high_s, timing.num_samples) == pytest.approx((2, 5, 8, 11))
    assert timing.spread == pytest.approx(6 / 5)


def test_one_slow_sample_of_many_moves_nothing() -> None:
    assert Timing.of([1.0] * 9 + [100.0]) == Timing(median_s=1.0, low_s=1.0, high_s=1.0, num_samples=10)


def test_no_samples_are_no_timing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Timing.of([])


@pytest.mark.parametrize(
    ("num_bytes", "copies"),
    [(0, 1), (50, 128), (1 << 20, 128), (2 << 20, 101), (50 << 20, 5), (200 << 20, 2), (201 << 20, 1)],
)
def test_copies_are_more_than_four_times_the_cache(num_bytes: int, copies: int) -> None:
    cached = 50 << 20
    assert num_copies(num_bytes, cached) == copies
    assert copies == 128 or num_bytes == 0 or copies * num_bytes > 4 * cached


def test_a_cpu_has_a_cache() -> None:
    assert 1 << 20 <= cache_bytes(CPU) <= 1 << 31


@pytest.mark.parametrize("way", ["eager", "graphed"])
def test_a_call_is_timed_alone(way: str) -> None:
    watch = OpTimer(CPU, repeats=5, **BRIEF)
    timing = getattr(watch, way)(time.sleep, [(0.005,)])
    assert 0.005 <= timing.low_s <= timing.median_s < 0.05  # ten together take that long
    assert timing.num_samples == 5


@pytest.mark.parametrize("way", ["eager", "graphed"])
def test_arguments_take_turns(way: str) -> None:
    seen: list[int] = []
    getattr(OpTimer(CPU, repeats=6, **BRIEF), way)(seen.append, [(0,), (1,), (2,)])
    assert seen[:6] == [0, 1, 2, 0, 1, 2]
    counts = Counter(seen)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_graph_holds_whole_turns_of_all_arguments() -> None:
    seen: list[int] = []
    watch = OpTimer(CPU, repeats=5, in_a_row=20, **BRIEF)
    watch.graphed(seen.append, [(number,) for number in range(7)])
    assert set(Counter(seen).values()) == {(1 + 5) * 3}  # once to warm up; 21 calls each


def test_slow_calls_end_with_the_budget_but_not_before_five_samples() -> None:
    watch = OpTimer(CPU, repeats=1000, warm_up_s=0.0, budget_s=0.02)
    assert 5 <= watch.eager(time.sleep, [(0.001,)]).num_samples <= 21
    assert OpTimer(CPU, repeats=1000, **BRIEF).eager(time.sleep, [(0.001,)]).num_samples == 5
