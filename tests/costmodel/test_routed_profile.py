"""Verifications of a sparse target, as long as those of a trace's texts."""

from dataclasses import replace

import numpy as np
import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.routes import ExpertsTouched, TouchedPoint
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli.plan import experts_priced
from swiftspec.costmodel.measured_routing import mean_touched
from swiftspec.costmodel.routed_profile import routed_profile
from swiftspec.planner.recorded import plan_recorded
from swiftspec.planner.recorded_routing import with_routed_profile
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import Sharing, SharingPoint, fit_costs
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tests.artifacts.test_profile import profile, step
from tests.cli.samples import plan, trace

NUM_EXPERTS, NUM_ACTIVE = 16, 2
FIXED_S, EXPERT_S, ROW_S = 0.01, 0.002, 0.001
TOUCHED = {1: 2.0, 2: 3.5, 4: 6.0, 8: 9.0, 16: 11.0, 32: 12.0}


def seconds(rows: int, experts: float) -> float:
    return FIXED_S + EXPERT_S * experts + ROW_S * rows


def measured(*, num_experts: int = NUM_EXPERTS) -> Profile:
    """A profile whose verifications take what its experts say, and steps of two sequences that take 4 ms more."""
    touched = ExpertsTouched(
        num_experts=num_experts,
        num_active=NUM_ACTIVE,
        points=tuple(TouchedPoint(rows=rows, experts=experts) for rows, experts in TOUCHED.items()),
    )
    steps = [step(rows, 64, seconds(rows, experts)) for rows, experts in TOUCHED.items()]
    alone_s = next(each.latency.median_s for each in steps if each.rows == 8)
    shared = [
        SharingPoint(
            role=Role.TARGET,
            degree=1,
            peer_busy=False,
            sequences=count,
            rows=8,
            context=64,
            median_s=alone_s + 0.004 * (count - 1),
            num_samples=5,
            provenance=Provenance.MEASURED,
        )
        for count in (1, 2)
    ]
    return profile(steps).model_copy(
        update={"experts_touched": touched, "sharing": Sharing(points=tuple(shared), costs=fit_costs(shared))}
    )


def alike(num_tokens: int = 24) -> AcceptanceTrace:
    """A trace of a target whose every second token has the experts of the one before."""
    chosen = np.random.default_rng(0).random((num_tokens, 3, NUM_EXPERTS)).argsort(-1)[..., :NUM_ACTIVE]
    chosen[1::2] = chosen[: num_tokens - 1 : 2][: len(chosen[1::2])]
    dense = trace(ranks=(0,) * num_tokens)
    prompts = (replace(dense.prompts[0], routes=chosen.astype(np.uint8)),)
    return replace(dense, num_experts=NUM_EXPERTS, prompts=prompts)


def median_s(of: Profile, rows: int) -> float:
    return next(each.latency.median_s for each in of.steps if each.rows == rows and each.phase is Phase.VERIFY)


def test_verifications_take_what_the_texts_experts_cost() -> None:
    before, texts = measured(), alike()
    after = routed_profile(before, texts)
    routes = texts.prompts[0].routes
    assert routes is not None
    windows = mean_touched([routes], num_experts=NUM_EXPERTS)
    for rows in (2, 4, 8, 16):
        expected = seconds(rows, windows[rows - 1]) / seconds(rows, TOUCHED[rows])
        assert median_s(after, rows) / median_s(before, rows) == pytest.approx(expected, rel=1e-6)
    assert windows[3] < TOUCHED[4] - 0.3  # what was asserted is a difference
    assert after.experts_touched is not None
    assert after.experts_touched.by_rows()[4] == pytest.approx(windows[3])


def test_a_single_row_is_as_it_was_measured_and_others_are_interpolated() -> None:
    after = routed_profile(measured(), alike())
    provenances = {each.rows: each.provenance for each in after.steps}
    assert provenances[1] is Provenance.MEASURED
    assert median_s(after, 1) == median_s(measured(), 1)
    assert {provenances[rows] for rows in TOUCHED if rows > 1} == {Provenance.INTERPOLATED}


def test_more_rows_than_an_output_has_tokens_touch_as_many_fewer_as_the_longest_window() -> None:
    after = routed_profile(measured(), alike(num_tokens=24)).experts_touched
    assert after is not None
    found = after.by_rows()
    assert found[32] - TOUCHED[32] == pytest.approx(found[16] - TOUCHED[16])


def test_steps_of_several_sequences_take_what_they_took() -> None:
    before, after = measured(), routed_profile(measured(), alike())

    def shared_s(of: Profile) -> float:
        two = StepKey(Role.TARGET, Phase.VERIFY, degree=1, rows=2, context=64, sequences=2)
        each_s, _ = of.latencies.further_sequences(two)
        return median_s(of, 8) + each_s

    assert median_s(after, 8) < 0.95 * median_s(before, 8)
    assert shared_s(after) == pytest.approx(shared_s(before))


def test_routing_twice_changes_nothing_more() -> None:
    once = routed_profile(measured(), alike())
    assert routed_profile(once, alike()) is once


@pytest.mark.parametrize("given", [measured(num_experts=32), profile([step(1, 64, 1.0)])], ids=["other", "dense"])
def test_profiles_of_other_targets_are_left_alone(given: Profile) -> None:
    assert routed_profile(given, alike()) is given
    assert routed_profile(measured(), trace()).steps == measured().steps


def test_plans_are_searched_with_it_and_keep_the_profile_as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Profile] = []

    def make_plan(profile: Profile, *_: object, **__: object) -> Plan:
        searched.append(profile)
        return plan()

    monkeypatch.setattr("swiftspec.planner.recorded.make_plan", make_plan)
    given = measured()
    planned = plan_recorded(given, alike(), num_devices=1, options=SearchOptions(num_jobs=1), progress=lambda *_: None)
    assert searched == [routed_profile(given, alike())]
    assert planned.profile is given
    assert with_routed_profile(planned).profile == searched[0]


def test_a_plan_says_so_in_a_sentence() -> None:
    planned = Planned(plan=plan(), profile=measured(), trace=alike())
    said = experts_priced(planned)
    assert said is not None
    assert said.startswith("Verifications are priced at the experts that as many consecutive tokens of the traced")
    assert said.endswith("The profile's own touched 6.00 for 4")
    assert experts_priced(replace(planned, trace=trace())) is None
