"""Plans for many requests: goodput under limits, against all candidates of a small search."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from swiftspec.artifacts.distributions import Distribution, Process
from swiftspec.artifacts.plan import Candidate, Goal, Objective, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.workload import RequestClass, Workload
from swiftspec.planner.load import Load
from swiftspec.planner.load_choice import MOST_CANDIDATES
from swiftspec.planner.search.options import SearchOptions
from swiftspec.planner.search.space import feasible_options
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import shape_of
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.simulator.setup import Setup
from swiftspec.timing.timeline import Phase
from swiftspec.workload import Arrivals, Lengths, make_workload
from tests.builders import machine_profile, with_guesses
from tests.planner.making import made_plan
from tools.iid_trace import synthesise_trace

TRACE = with_guesses(synthesise_trace((0.75, 0.12, 0.05, 0.02), prompt_lengths=(12, 20, 16), num_tokens=32, seed=1))
LIGHT, HEAVY = 2.0, 60.0


def costly_rows(row_share: float = 0.03, cost_ratio: float = 4.0) -> Profile:
    """A machine on which every further row of a verification costs a share of the first one."""
    whole = machine_profile(cost_ratio=cost_ratio, noise=0.0)
    scaled = [
        step.model_copy(update={"quantiles_s": tuple((1 + row_share * step.rows) * one for one in step.quantiles_s)})
        if step.phase is Phase.VERIFY
        else step
        for step in whole.steps
    ]
    return whole.model_copy(update={"steps": tuple(scaled)})


PROFILE = costly_rows()
PREDICTOR = Predictor(PROFILE, TRACE)


@pytest.fixture(scope="module", autouse=True)
def _small_search() -> Iterator[None]:
    """Three policies with few shapes: all options can be simulated."""
    few = {
        SwiftSpec: [SwiftSpec(verify_rows=rows) for rows in (2, 4, 16)],
        SerialChain: [one for one in SerialChain.search_space() if one.num_draft_tokens in (1, 4)],
    }
    with pytest.MonkeyPatch.context() as patch:
        for policy_class, shapes in few.items():
            patch.setattr(policy_class, "search_space", classmethod(lambda _, shapes=shapes: iter(shapes)))
        patch.setattr("swiftspec.planner.search.space.policy_classes", lambda _: [Autoregressive, *few])
        yield


def fixed(tokens: int) -> Lengths:
    return Lengths(distribution=Distribution.FIXED, tokens=tokens)


@cache  # the same request file, written at the same time
def workload(rate: float, **limits: float) -> Workload:
    return make_workload(
        Arrivals(process=Process.POISSON, rate=rate),
        num_requests=40,
        prompt_tokens=fixed(16),
        output_tokens=Lengths(distribution=Distribution.UNIFORM, least=16, most=32),
        classes=[RequestClass(name="chat", **limits)],
    )


def plan(load: Load | None, **arguments: Any) -> Plan:
    given = {"profile": PROFILE} | arguments
    return made_plan(trace=TRACE, num_devices=2, load=load, **given)


def under_load(rate: float, *, tpot_s: float = 0.05, profile: Profile = PROFILE) -> Plan:
    return plan(Load(workload=workload(rate)), goal=Goal(ttft_s=1.0, tpot_s=tpot_s), profile=profile)


@pytest.fixture(scope="module")
def light() -> Plan:
    return under_load(LIGHT)


@pytest.fixture(scope="module")
def heavy() -> Plan:
    return under_load(HEAVY)


def test_one_request_prefers_two_groups_and_a_heavy_load_does_not(light: Plan, heavy: Plan) -> None:
    assert light.under_load is not None
    assert heavy.under_load is not None
    alone = plan(None)
    assert alone.under_load is None
    assert alone.chosen.split == "1+1"
    for made in (light, heavy):
        assert made.under_load is not None
        assert made.under_load.single_request.candidate == alone.chosen.describe()
    assert light.chosen.policy == alone.chosen.policy
    assert heavy.chosen.split == "2"
    figures = heavy.under_load.predictions[heavy.chosen.policy]
    assert figures.metrics.request_goodput > 1.2 * heavy.under_load.single_request.metrics.request_goodput
    assert figures.tokens_per_s < heavy.under_load.single_request.tokens_per_s


@pytest.mark.parametrize("rate", [LIGHT, 20.0, HEAVY])
def test_no_option_of_the_whole_search_has_a_higher_goodput(rate: float) -> None:
    made = under_load(rate)
    assert made.under_load is not None
    options, _ = feasible_options(PROFILE, TRACE, num_devices=2)
    load = Load(workload=workload(rate), goal=Goal(ttft_s=1.0, tpot_s=0.05))
    goodputs = []
    for option in options:
        known = made.candidates[option.policy.name]  # all shapes wait for others as long as this one
        candidate = Candidate(
            policy=option.policy.name,
            shape=shape_of(option.policy),
            groups=dict(option.groups),
            prediction=known.prediction,
        )
        served = PREDICTOR.serve(
            Setup.of(candidate),
            load.workload,
            goal=load.goal,
            options=load.options,
        )
        goodputs.append(served.metrics.request_goodput)
    found = made.under_load.predictions[made.chosen.policy].metrics.request_goodput
    assert found >= 0.98 * max(goodputs)


def test_candidates_of_both_layouts_and_variants_are_simulated(heavy: Plan) -> None:
    assert heavy.under_load is not None
    assert set(heavy.under_load.predictions) == {"autoregressive", "serial_chain", "swiftspec"}
    assert 3 < heavy.under_load.num_candidates <= MOST_CANDIDATES
    assert list(heavy.candidates) == list(heavy.under_load.ranked)
    assert (heavy.sensitivities, heavy.ties) == ((), ())


def test_limits_change_the_choice() -> None:
    # Without a draft more requests are served a second; with one, more of them keep a strict limit.
    profile = costly_rows(row_share=0.08, cost_ratio=6.0)
    strict, loose = (under_load(HEAVY, tpot_s=tpot_s, profile=profile) for tpot_s in (0.012, 0.05))
    assert strict.under_load is not None
    assert (strict.chosen.policy, loose.chosen.policy) == ("serial_chain", "autoregressive")
    assert strict.under_load.goal.classes[0].tpot_s == 0.012


def test_limits_of_classes_count_unless_others_are_given() -> None:
    classes = Load(workload=workload(5.0, ttft_s=0.4, tpot_s=0.02)).goal.classes
    assert [(one.ttft_s, one.tpot_s) for one in classes] == [(0.4, 0.02)]
    (given,) = Load(workload=workload(5.0, ttft_s=0.4, tpot_s=0.02), goal=Goal(tpot_s=0.1)).goal.classes
    assert (given.ttft_s, given.tpot_s) == (0.4, 0.1)


def test_without_limits_the_lowest_mean_end_to_end_time_is_chosen() -> None:
    made = plan(Load(workload=workload(HEAVY)))
    assert made.under_load is not None
    assert not made.under_load.goal.is_limited
    times = {name: one.metrics.e2el_s.mean for name, one in made.under_load.predictions.items()}
    assert min(times, key=lambda name: times[name]) == made.chosen.policy


def test_an_acceptable_candidate_goes_before_a_higher_goodput() -> None:
    goal = Load(workload=workload(5.0), goal=Goal(ttft_s=1.0, percentile=90.0)).goal
    assert goal.score(attained=0.9, goodput=1.0, e2e_s=9.0) > goal.score(attained=0.89, goodput=2.0, e2e_s=1.0)
    assert goal.score(attained=0.9, goodput=2.0, e2e_s=9.0) > goal.score(attained=1.0, goodput=1.0, e2e_s=1.0)
    assert not goal.accepts(0.8999)


def test_of_goodputs_that_differ_by_the_last_requests_end_the_shorter_time_wins() -> None:
    goal = Load(workload=workload(5.0), goal=Goal(ttft_s=1.0)).goal
    assert goal.score(attained=1.0, goodput=2.1509, e2e_s=0.071) > goal.score(attained=1.0, goodput=2.1511, e2e_s=0.074)
    assert goal.score(attained=1.0, goodput=2.17, e2e_s=0.08) > goal.score(attained=1.0, goodput=2.15, e2e_s=0.07)


def test_one_policy_alone_is_chosen_from_if_it_is_asked_for() -> None:
    made = plan(Load(workload=workload(HEAVY)), goal=Goal(ttft_s=1.0, tpot_s=0.05), policy="swiftspec")
    assert made.chosen.policy == "swiftspec"


def test_jobs_do_not_change_the_plan(heavy: Plan) -> None:
    two = plan(Load(workload=workload(HEAVY)), goal=Goal(ttft_s=1.0, tpot_s=0.05), num_jobs=2)
    assert two.under_load == heavy.under_load
    assert two.chosen == heavy.chosen


def test_progress_reaches_its_total() -> None:
    heard: list[tuple[int, int, str]] = []
    plan(
        Load(workload=workload(HEAVY)),
        goal=Goal(ttft_s=1.0),
        progress=lambda done, total, what: heard.append((done, total, what)),
    )
    assert {"under load", "variants"} <= {what for *_, what in heard}
    assert heard[-1][0] == heard[-1][1]


def test_at_most_so_many_requests_are_simulated() -> None:
    load = Load(workload=workload(5.0), most_requests=7)
    assert load.simulated.requests == load.workload.requests[:7]
    many = make_workload(
        Arrivals(process=Process.POISSON, rate=1.0),
        num_requests=400,
        prompt_tokens=fixed(16),
        output_tokens=fixed(100),
    )
    assert len(Load(workload=many).simulated.requests) == 150
    made = plan(load)
    assert made.under_load is not None
    assert (made.under_load.num_simulated, made.under_load.num_requests) == (7, 40)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"ttft_s": -0.2}, "ttft_s\n.*greater than 0"),
        ({"tpot_s": float("nan")}, "tpot_s\n.*finite number"),
        ({"tpot_s": 0.1, "percentile": 0.0}, "percentile\n.*greater than 0"),
        ({"tpot_s": 0.1, "percentile": 101.0}, "percentile\n.*less than or equal to 100"),
        ({"percentile": 99.0}, "percentile is 99, but there are no limits to keep"),
    ],
)
def test_bad_limits_are_named(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Load(workload=workload(5.0), goal=Goal(**limits))


def test_bad_numbers_of_requests_are_named() -> None:
    with pytest.raises(ValueError, match="most_requests is 0; expected at least 1"):
        Load(workload=workload(5.0), most_requests=0)


def test_a_percentile_needs_a_workload() -> None:
    with pytest.raises(ValueError, match="percentile is 95; it needs a workload"):
        SearchOptions(goal=Goal(percentile=95)).check(num_devices=2)


def test_the_limits_of_the_goal_are_those_of_the_load() -> None:
    options = SearchOptions(goal=Goal(tpot_s=0.02), load=Load(workload=workload(5.0)))
    assert options.load is not None
    assert [each.tpot_s for each in options.load.goal.classes] == [0.02]


def test_another_objective_is_refused() -> None:
    load = Load(workload=workload(5.0))
    options = SearchOptions(goal=Goal(objective=Objective.TPOT), load=load)
    with pytest.raises(ValueError, match="objective is tpot; with a workload the objective is goodput"):
        options.check(num_devices=2)


def test_a_request_longer_than_the_context_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"requests\[0\].prompt_tokens is 16; with \d+ output tokens that is more than"
    ):
        Load(workload=workload(5.0)).check_context(20, "small")


def test_a_closed_loop_can_be_planned_for() -> None:
    closed = make_workload(
        Arrivals(process=Process.CLOSED, num_clients=6),
        num_requests=18,
        prompt_tokens=fixed(16),
        output_tokens=fixed(24),
    )
    made = plan(Load(workload=closed), goal=Goal(tpot_s=0.05))
    assert made.under_load is not None
    assert made.under_load.arrivals == "closed:6"
    assert Role.TARGET in made.chosen.groups
