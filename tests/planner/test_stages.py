"""A search in stages, also with goals and limits."""

import math
from typing import Any

import pytest

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Basis, Goal, Objective, Plan
from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.evaluation import Budget, Evaluator
from swiftspec.planner.search.sensitivity import Changes
from swiftspec.planner.search.space import feasible_options
from swiftspec.policies import POLICIES
from swiftspec.policies.effects import Role
from swiftspec.simulator.forward_errors import COMPOSED, forward_errors
from tests.builders import OF_SERIAL_DRAFTS, with_guesses
from tests.planner.making import made_plan
from tests.planner.pairs import DEVICE, PAIR, QUANTISATION, composed_profile
from tools.iid_trace import synthesise_trace

BASIS = Basis(path="file", sha256="0" * 64)
TRACE = with_guesses(synthesise_trace((0.7, 0.12, 0.05, 0.02), prompt_lengths=(64,) * 3, num_tokens=24, seed=1))
PROFILE = composed_profile(num_devices=4, context=1024)
MEMORY = MemoryModel(device=DEVICE, specs=PAIR, quantisation=QUANTISATION)


def plan(*, num_jobs: int = 1, heard: list[tuple[int, int]] | None = None, **arguments: Any) -> Plan:
    calls = [] if heard is None else heard
    given = {"num_devices": 3, "policy": None, "memory": MEMORY} | arguments
    return made_plan(
        profile=PROFILE,
        trace=TRACE,
        seed=0,
        num_jobs=num_jobs,
        progress=lambda done, total, what: calls.append((done, total)),
        **given,
    )


@pytest.fixture(scope="module")
def made() -> tuple[Plan, list[tuple[int, int]]]:
    heard: list[tuple[int, int]] = []
    return plan(heard=heard, goal=Goal(objective=Objective.TPOT), changes=Changes()), heard


def test_no_option_on_any_split_is_much_faster_than_what_is_quickly_found(made: tuple[Plan, object]) -> None:
    chosen = made[0].chosen
    options, _ = feasible_options(PROFILE, TRACE, num_devices=3, memory=MEMORY)
    whole = Budget(prompt_indices=(0, 1, 2), max_new_tokens=24, seeds=(0,))
    fast = {"swiftspec", *list(made[0].candidates)[:2]}
    tried = [option for option in options if option.policy.name in fast and option.num_devices == 3]
    outcomes = Evaluator(PROFILE, TRACE, num_jobs=1).run(tried, whole)
    least_s = min(outcome.mean_tpot_s for outcome in outcomes)
    key = chosen.build(), tuple((len(group), 1) for group in chosen.groups.values())
    (found,) = (outcome for outcome in outcomes if outcome.option.key == key)
    assert found.mean_tpot_s <= 1.02 * least_s


def test_every_policy_is_there_and_every_option_simulated_or_rejected(made: tuple[Plan, object]) -> None:
    subject, _ = made
    searched = {name for name, cls in POLICIES.items() if cls.searched}
    assert set(subject.candidates) == searched & {*OF_SERIAL_DRAFTS}
    options, rejected = feasible_options(PROFILE, TRACE, num_devices=3, memory=MEMORY, policies=searched)
    assert subject.num_simulated + sum(subject.rejected.values()) == len(options) + sum(rejected.values())
    assert subject.num_simulated < len(options) / 4


def test_progress_counts_up_to_its_total(made: tuple[Plan, list[tuple[int, int]]]) -> None:
    counts = [done for done, _ in made[1]]
    assert counts == sorted(counts)
    assert all(done <= total for done, total in made[1])
    assert made[1][-1][0] == made[1][-1][1]


def test_a_plan_tells_what_was_explored(made: tuple[Plan, object]) -> None:
    subject, _ = made
    cells = {(cell.policy, cell.split): cell for cell in subject.explored}
    assert len(cells) == len(subject.explored)
    for candidate in subject.candidates.values():
        cell, figures = cells[candidate.policy, candidate.split], candidate.prediction.metrics.figures
        assert cell.tokens_per_s == pytest.approx(figures.tokens_per_s)
    assert list(subject.fastest_by_devices) == [1, 2, 3]
    speeds = [cell.tokens_per_s for cell in subject.fastest_by_devices.values()]
    assert speeds == sorted(speeds)


def test_a_plan_tells_memory_quantisation_and_collectives(made: tuple[Plan, object]) -> None:
    subject, _ = made
    assert subject.quantisation == {Role.TARGET: "int4", Role.DRAFT: "int4"}
    assert sum(len(group.devices) for group in subject.memory) == len(subject.chosen.devices)
    assert all(0 < group.used_bytes <= group.usable_bytes for group in subject.memory)
    for collective in subject.collectives:
        assert collective.degree == len(subject.chosen.groups.get(collective.role, subject.chosen.groups[Role.TARGET]))


def test_a_quick_plan_does_not_depend_on_the_number_of_jobs() -> None:
    given: dict[str, Any] = {"policy": "serial_tree", "goal": Goal(objective=Objective.TPOT), "changes": Changes()}
    alone, parallel = plan(**given), plan(num_jobs=2, backend="loky", **given)
    assert parallel.model_dump(exclude={"origin"}) == alone.model_dump(exclude={"origin"})


def test_fewer_devices_are_better_per_device(made: tuple[Plan, object]) -> None:
    goal = Goal(objective=Objective.TOKENS_PER_GPU)
    subject = plan(goal=goal)
    assert len(subject.chosen.devices) < len(made[0].chosen.devices)
    per_device = {len(c.devices): c.prediction.metrics.figures.tokens_per_s / len(c.devices) for c in (subject.chosen,)}
    other = made[0].chosen
    assert max(per_device.values()) > other.prediction.metrics.figures.tokens_per_s / len(other.devices)
    cheap = Goal(objective=Objective.COST, price_per_hour=3.0)
    assert plan(policy="serial_tree", goal=cheap).chosen == plan(policy="serial_tree", goal=goal).chosen


def test_a_limit_on_tpot_takes_as_many_devices_as_it_needs() -> None:
    cheapest = plan(policy="serial_tree", goal=Goal(objective=Objective.TOKENS_PER_GPU)).chosen
    limit_s = 0.8 * cheapest.prediction.metrics.tpot_s
    goal = Goal(objective=Objective.TOKENS_PER_GPU, tpot_s=limit_s)
    kept = plan(policy="serial_tree", goal=goal).chosen
    assert kept.prediction.metrics.tpot_s <= limit_s * 1.05  # a median, where the limit is on the mean
    assert len(kept.devices) > len(cheapest.devices)


def test_a_limit_out_of_reach_is_an_error_that_says_what_is_in_reach(made: tuple[Plan, object]) -> None:
    with pytest.raises(ValueError, match=r"tpot_ms is 0\.1; the lowest that was found is \d") as error:
        plan(goal=Goal(tpot_s=1e-4))
    reached_s = float(str(error.value).partition("found is ")[2].partition(",")[0]) / 1e3
    assert reached_s == pytest.approx(made[0].chosen.prediction.metrics.tpot_s, rel=0.05)


def test_a_limit_on_devices_is_kept_and_the_others_stay_free() -> None:
    subject = plan(goal=Goal(max_devices=2))
    assert (len(subject.chosen.devices), subject.num_devices) == (2, 3)
    assert max(cell.num_devices for cell in subject.explored) == 2


def test_a_policy_that_was_asked_for_has_no_rival_of_another_one() -> None:
    subject = plan(policy="pearl", changes=Changes())
    assert list(subject.candidates) == ["pearl", "autoregressive"]
    assert {row.best.split()[0] for row in subject.sensitivities} == {"pearl"}
    # With nothing to rival it but other policies, nothing can change the choice.
    alone = plan(policy="autoregressive", num_devices=1, changes=Changes())
    assert len(alone.sensitivities) >= 2
    assert not any(row.changes_choice for row in alone.sensitivities if row.change != "another device")


def test_sensitivities_are_those_of_the_choice(made: tuple[Plan, object]) -> None:
    subject, _ = made
    assert {row.change for row in subject.sensitivities} >= {"acceptance -10 %", "another device"}
    own = subject.chosen.prediction.metrics.figures.tokens_per_s
    for row in subject.sensitivities:
        assert row.best_tokens_per_s >= row.tokens_per_s
        assert row.changes_choice or row.best == subject.chosen.describe()
        assert row.change == "another device" or row.tokens_per_s < own


def test_a_model_that_does_not_fit_at_all_is_an_error() -> None:
    memory = MemoryModel(device=DEVICE, specs=PAIR, quantisation=dict.fromkeys(Role, "bf16"))
    message = r"the target in bf16 does not fit on one h800-sxm: 14\d\.\d GB .* more than the 78\.7 GB usable"
    with pytest.raises(ValueError, match=message):
        plan(memory=memory, num_devices=1)


def test_a_plan_is_what_the_simulator_says(made: tuple[Plan, object]) -> None:
    from swiftspec.simulator.driver import simulate

    chosen = made[0].chosen
    degrees = {role: len(devices) for role, devices in chosen.groups.items()}
    errors = forward_errors(PROFILE)
    timelines = [
        timeline
        for seed in (0, 1, 2)
        for timeline in simulate(
            chosen.build(), degrees=degrees, profile=PROFILE, trace=TRACE, seed=seed, errors=errors
        )
    ]
    assert len(timelines) == 3 * 2 * len(TRACE.prompts)
    assert chosen.prediction.metrics == measure(timelines)


def test_a_plan_says_which_errors_its_intervals_include(made: tuple[Plan, object]) -> None:
    subject, _ = made
    assert subject.known_errors == {"target forwards": COMPOSED, "draft forwards": COMPOSED}
    alone = subject.candidates["autoregressive"].prediction
    spread = math.log(alone.tokens_per_s_high / alone.tokens_per_s_low) / 2 / 1.96
    assert spread == pytest.approx(COMPOSED, rel=0.15)


def test_only_allowed_degrees_are_chosen() -> None:
    two = AllowedDegrees(sizes=frozenset({2}))
    subject = plan(policy="swiftspec", degrees=two, changes=Changes(), num_devices=4)
    assert {len(group) for group in subject.chosen.groups.values()} == {2}
    assert all(size == "2" for cell in subject.explored for size in cell.split.split("+"))
    assert "another device" not in {row.change for row in subject.sensitivities}
    with pytest.raises(ValueError, match="a group's size is not one of those allowed, 8"):
        plan(degrees=AllowedDegrees(sizes=frozenset({8})))
