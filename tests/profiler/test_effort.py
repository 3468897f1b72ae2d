"""How much of a profile fits into a time, on made-up machines."""

import pytest

from swiftspec.artifacts.profile import PASSES
from swiftspec.policies import Layout
from swiftspec.profiler.effort import FULL, Effort, Pace, Schedule, left_out, pass_seconds
from swiftspec.profiler.grids import CONTEXTS

TWO_CORES = (Layout.COLOCATED, Layout.COLOCATED, Layout.DISAGGREGATED)


def pace(slowness: float) -> Pace:
    """That of a target of 12 million parameters on two cores, or of one that is so many times as slow."""

    def curve(*milliseconds: float) -> dict[int, float]:
        return {rows: slowness * ms * 1e-3 for rows, ms in zip((1, 8, 32), milliseconds, strict=True)}

    return Pace(
        target=curve(12.0, 13.2, 17.4), draft=curve(0.5, 0.6, 0.9), prompt_token_s=0.6e-3 * slowness, start_s=1.5
    )


def schedule(slowness: float, *, minutes: float = 10.0) -> Schedule:
    return Schedule(pace(slowness), TWO_CORES, within_s=60 * minutes, most_passes=PASSES, contexts=CONTEXTS)


def whole_s(effort: Effort, slowness: float) -> float:
    return effort.passes * pass_seconds(effort, pace(slowness), TWO_CORES)


def test_a_small_model_is_measured_in_full() -> None:
    assert schedule(1.0).effort == FULL
    assert left_out(FULL) == []


def test_a_slow_model_is_measured_in_the_time_that_there_is() -> None:
    found = schedule(12.0).effort
    assert whole_s(FULL, 12.0) > 1500  # what it would take
    assert whole_s(found, 12.0) <= 600
    assert found.passes == 1
    assert left_out(found)[0] == f"1 of {PASSES} passes"


@pytest.mark.parametrize("slowness", [0.3, 1.0, 3.0, 10.0, 30.0])
def test_more_time_allows_no_less(slowness: float) -> None:
    seconds = [whole_s(schedule(slowness, minutes=minutes).effort, slowness) for minutes in (1, 3, 10, 30, 100)]
    assert seconds == sorted(seconds)


def test_what_fits_no_time_is_the_least() -> None:
    least = schedule(1000.0).effort
    assert schedule(2000.0).effort == least
    assert (least.passes, least.contexts, least.repeats) == (1, 2, 2)


def test_contexts_are_spread_and_the_longest_is_among_them() -> None:
    assert Effort(contexts=2).of((16, 64, 256, 640)) == [16, 640]
    assert Effort(contexts=3).of((16, 64, 256, 640)) == [16, 64, 640]
    assert Effort(contexts=4).of((16, 64)) == [16, 64]
    assert Effort(contexts=1).of((16, 64)) == [64]
    assert FULL.of((64, 500, 1000, 2000, 4000)) == [64, 500, 1000, 2000, 4000]
    assert FULL.of(()) == []


def test_a_first_bench_that_took_longer_leaves_less_for_the_others() -> None:
    chosen = schedule(8.0)
    before = chosen.effort
    expected_s = pass_seconds(before, pace(8.0), TWO_CORES[:1])
    chosen.note(1, spent_s=expected_s)
    assert chosen.effort == before
    chosen.note(1, spent_s=3 * expected_s)
    after = chosen.effort
    assert after.contexts == before.contexts  # benches are compared at equal ones
    assert whole_s(after, 8.0) < whole_s(before, 8.0)


def test_another_pass_begins_only_if_it_ends_in_time() -> None:
    chosen = schedule(1.0)
    assert chosen.has_time(1, spent_s=250.0)
    assert not chosen.has_time(1, spent_s=350.0)
    assert not chosen.has_time(PASSES, spent_s=1.0)
