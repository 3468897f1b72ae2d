"""Choices of a demo on made-up machines."""

import pytest

from swiftspec.demo import DEMO_INFLATION
from swiftspec.demo.budget import LADDER, STAGES, Choice, Scope, choose, left_out, restricted, stage_seconds
from swiftspec.demo.gauge import Gauge
from swiftspec.profiler.effort import Curve

SCOPE = Scope(new_tokens=96, num_policies=4)
BUDGET_S = 480.0


def machine(slowness: float, *, forwards: float = 1.0, num_devices: int = 2) -> Gauge:
    """Two Sapphire Rapids cores, or some that are slower: at everything, and at forwards in particular."""
    slow = slowness * forwards

    def curve(*milliseconds: float) -> Curve:
        return Curve({rows: slow * ms * 1e-3 for rows, ms in zip((1, 8, 32), milliseconds, strict=True)})

    return Gauge(
        base=curve(2.0, 2.2, 2.9),
        deep=curve(12.0, 13.2, 17.4),
        base_layers=8,
        deep_layers=48,
        draft=curve(0.5, 0.6, 0.9),
        load_s=1.5 * slowness,
        simulation_s=0.008 * slowness,
        num_devices=num_devices,
    )


FAST, SLOW, VERY_SLOW = machine(1.0), machine(1.3, forwards=5.0), machine(3.0, forwards=6.0)


def total_s(gauge: Gauge, choice: Choice) -> float:
    return sum(stage_seconds(gauge, SCOPE, choice).values())


def test_a_fast_machine_does_all_there_is() -> None:
    assert choose(FAST, SCOPE, budget_s=BUDGET_S) == LADDER[0]
    assert left_out(LADDER[0]) == []
    assert f"layers={LADDER[0].layers}" == DEMO_INFLATION


def test_a_slow_machine_does_less_and_says_what_it_leaves_out() -> None:
    assert total_s(SLOW, LADDER[0]) > 2 * BUDGET_S  # all there is takes 20 minutes
    choice = choose(SLOW, SCOPE, budget_s=BUDGET_S)
    assert total_s(SLOW, choice) <= BUDGET_S
    assert choice in LADDER[1:-1]
    sentences = left_out(choice)
    assert any(sentence.startswith(f"{choice.repeats} instead of 3 repetitions") for sentence in sentences)
    assert any(sentence.startswith(f"{choice.layers} instead of 48 layers") for sentence in sentences)


def test_what_fits_no_machine_is_the_least_that_says_something() -> None:
    assert choose(VERY_SLOW, SCOPE, budget_s=30.0) == LADDER[-1]
    assert total_s(VERY_SLOW, choose(VERY_SLOW, SCOPE, budget_s=BUDGET_S)) <= BUDGET_S


@pytest.mark.parametrize("gauge", [FAST, SLOW, VERY_SLOW], ids=["fast", "slow", "very slow"])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_every_step_down_the_ladder_takes_less_time(gauge: Gauge, num_devices: int) -> None:
    gauge = Gauge(**{name: getattr(gauge, name) for name in gauge.__slots__} | {"num_devices": num_devices})
    totals = [total_s(gauge, choice) for choice in LADDER]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == len(totals)
    assert set(stage_seconds(gauge, SCOPE, LADDER[0])) == set(STAGES)


def test_more_time_allows_more() -> None:
    chosen = [LADDER.index(choose(SLOW, SCOPE, budget_s=minutes * 60)) for minutes in (2, 4, 8, 16, 60)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[-1] == 0
    assert len(set(chosen)) > 3


def test_stages_that_took_long_leave_less_for_the_others() -> None:
    expected = stage_seconds(FAST, SCOPE, LADDER[0])
    spent = {"profile": 2.5 * expected["profile"]}
    assert choose(FAST, SCOPE, budget_s=BUDGET_S, spent_s={"profile": expected["profile"]}) == LADDER[0]
    ladder = restricted(LADDER, layers=48, passes=3)
    less = choose(FAST, SCOPE, budget_s=BUDGET_S, ladder=ladder, spent_s=spent, pace=2.5)
    assert (less.layers, less.passes) == (48, 3)
    assert less.validated * less.repeats < 18 * 3


def test_what_the_user_settles_stays() -> None:
    ladder = restricted(LADDER, layers=20, repeats=5, most_traced=100, most_validated=10)
    assert {(choice.layers, choice.repeats) for choice in ladder} == {(20, 5)}
    assert max(choice.traced for choice in ladder) == 100
    assert max(choice.validated for choice in ladder) == 10
    assert len(set(ladder)) == len(ladder)


def test_the_time_of_a_forward_is_interpolated_between_rows_and_depths() -> None:
    assert FAST.target_s(48, 1) == pytest.approx(12e-3)
    assert FAST.target_s(8, 32) == pytest.approx(2.9e-3)
    assert FAST.target_s(28, 1) == pytest.approx(7e-3)
    assert FAST.target_s(48, 20) == pytest.approx((13.2 + 17.4) / 2 * 1e-3)
    assert Curve({8: 1.0}).at(3) == 1.0
    assert Curve({1: 2.0, 8: 1.0}).at(4) == 2.0  # noise: more rows do not take less
