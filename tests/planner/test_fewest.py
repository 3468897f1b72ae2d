"""The fewest devices that reach a speed, against every option on every split simulated in full."""

from functools import cache

import pytest

from swiftspec.artifacts.plan import Goal, Objective, Plan
from swiftspec.planner.search.decision import known_errors
from swiftspec.planner.search.evaluation import Budget, Evaluator
from swiftspec.planner.search.sensitivity import Changes
from swiftspec.planner.search.space import feasible_options
from tests.planner.test_stages import MEMORY, PROFILE, TRACE, plan

NUM_DEVICES = 3
POLICY = "pearl"  # on three splits


@cache
def fastest_by_devices() -> dict[int, float]:
    """Tokens/s of the best option that uses exactly this many devices, each simulated on the whole trace."""
    options, _ = feasible_options(PROFILE, TRACE, num_devices=NUM_DEVICES, memory=MEMORY)
    whole = Budget(prompt_indices=tuple(range(len(TRACE.prompts))), max_new_tokens=32, seeds=(0,))
    tried = [option for option in options if option.policy.name == POLICY]
    assert {option.split for option in tried} == {"1+1", "1+2", "2+1"}
    outcomes = Evaluator(PROFILE, TRACE, num_jobs=1, errors=known_errors(PROFILE, None).forwards).run(tried, whole)
    best: dict[int, float] = {}
    for outcome in outcomes:
        count = outcome.option.num_devices
        best[count] = max(best.get(count, 0.0), outcome.tokens_per_s)
    return best


@cache
def found(devices: int, share: float) -> Plan:
    """The plan for a share of the best speed on a number of devices."""
    goal = Goal(objective=Objective.DEVICES, min_tokens_per_s=share * fastest_by_devices()[devices])
    return plan(num_devices=NUM_DEVICES, policy=POLICY, goal=goal, changes=Changes())


@pytest.mark.parametrize(
    ("devices", "share", "needed"),
    # Reached by a little, and missed by a little.
    [(2, 0.98, 2), (2, 1.02, 3), (3, 0.98, 3)],
)
def test_as_few_devices_as_all_splits_simulated_say(devices: int, share: float, needed: int) -> None:
    wanted, made = share * fastest_by_devices()[devices], found(devices, share)
    assert len(made.chosen.devices) == needed
    reached = made.chosen.prediction.metrics.figures.tokens_per_s
    assert reached >= wanted
    assert reached >= 0.97 * fastest_by_devices()[needed]  # the fastest of these, within what simplicity may cost


def test_rivals_of_the_fewest_devices_use_no_more_of_them() -> None:
    made = found(2, 0.98)
    assert len(made.chosen.devices) == 2
    for row in made.sensitivities:
        used = sum(map(int, row.best.split()[1].split("+")))
        assert used == 2 + (row.change == "another device"), row


def test_every_option_is_simulated_or_rejected_however_many_searches_there_were() -> None:
    made = found(2, 0.98)
    options, unfit = feasible_options(
        PROFILE, TRACE, num_devices=NUM_DEVICES, memory=MEMORY, policies={POLICY, "autoregressive"}
    )
    assert made.num_simulated + sum(made.rejected.values()) == len(options) + sum(unfit.values())


def test_a_speed_that_no_number_of_devices_reaches_brings_the_highest() -> None:
    with pytest.raises(ValueError, match=r"min_tokens_per_s is 1e\+04; the highest that was found is \d"):
        plan(num_devices=1, policy="serial_chain", goal=Goal(objective=Objective.DEVICES, min_tokens_per_s=1e4))


def test_limits_hold_for_another_objective_too() -> None:
    loose = plan(num_devices=2, policy="serial_tree", goal=Goal(objective=Objective.TOKENS_PER_GPU)).chosen
    assert len(loose.devices) == 1
    least = 1.2 * loose.prediction.metrics.figures.tokens_per_s
    fast = plan(
        num_devices=2, policy="serial_tree", goal=Goal(objective=Objective.TOKENS_PER_GPU, min_tokens_per_s=least)
    ).chosen
    assert len(fast.devices) == 2
    assert fast.prediction.metrics.figures.tokens_per_s >= least
    most_s = 0.7 * loose.prediction.metrics.ttft_s
    quick = plan(
        num_devices=2, policy="serial_tree", goal=Goal(objective=Objective.TOKENS_PER_GPU, ttft_s=most_s)
    ).chosen
    assert len(quick.devices) == 2
    assert quick.prediction.metrics.ttft_s <= 1.01 * most_s  # a median, where the limit is on the mean


def test_a_ttft_out_of_reach_brings_the_lowest() -> None:
    with pytest.raises(ValueError, match=r"ttft_ms is 0\.01; the lowest that was found is \d"):
        plan(num_devices=1, policy="serial_chain", goal=Goal(ttft_s=1e-5))


def test_a_plan_is_restricted_to_splits() -> None:
    made = plan(num_devices=2, policy="pearl", goal=Goal(splits=("1+1",)))
    assert {candidate.split for candidate in made.candidates.values()} == {"1+1"}
    assert {cell.split for cell in made.explored} == {"1+1"}
    assert list(made.candidates) == ["pearl"]
    with pytest.raises(ValueError, match="but no option is feasible: pearl: not on the split that was asked for"):
        plan(num_devices=2, policy="pearl", goal=Goal(splits=("2+1",)))
