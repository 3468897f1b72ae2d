"""Choice of a fleet on a small machine, against every number of replicas of every option of a small search."""

import math
from collections.abc import Iterator
from functools import cache

import pytest

from swiftspec.artifacts.distributions import Distribution, Process
from swiftspec.artifacts.fleet import Drafting, Fleet
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.planner.fleet.replica import replica_share, with_workload
from swiftspec.planner.load import Load
from swiftspec.planner.search.options import SearchOptions
from swiftspec.planner.search.space import feasible_options
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.planner.under_load.schedule import draft_schedule
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import shape_of
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.simulator.setup import Setup
from swiftspec.workload import Arrivals, Lengths, Prefixes, RequestClass, make_workload
from tests.builders import machine_profile, with_guesses
from tests.planner.making import made_plan
from tools.iid_trace import synthesise_trace

TRACE = with_guesses(synthesise_trace((0.75, 0.12, 0.05, 0.02), prompt_lengths=(12, 20, 16), num_tokens=32, seed=1))
PROFILE = machine_profile(cost_ratio=6.0, noise=0.0)
PREDICTOR = Predictor(PROFILE, TRACE)
MOST_DEVICES, RATE, TPOT_S = 8, 40.0, 0.008


@pytest.fixture(scope="module", autouse=True)
def _small_search() -> Iterator[None]:
    """Three policies with few shapes: all options can be simulated."""
    few = {
        SwiftSpec: [SwiftSpec(verify_rows=rows) for rows in (4, 8)],
        SerialChain: [one for one in SerialChain.search_space() if one.num_draft_tokens in (1, 4)],
    }
    with pytest.MonkeyPatch.context() as patch:
        for policy_class, shapes in few.items():
            patch.setattr(policy_class, "search_space", classmethod(lambda _, shapes=shapes: iter(shapes)))
        patch.setattr("swiftspec.planner.search.space.policy_classes", lambda _: [Autoregressive, *few])
        yield


@cache
def load_of(rate: float = RATE, tpot_s: float = TPOT_S, num_requests: int = 100) -> Load:
    workload = make_workload(
        Arrivals(process=Process.POISSON, rate=rate),
        num_requests=num_requests,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=16),
        output_tokens=Lengths(distribution=Distribution.UNIFORM, least=16, most=32),
        classes=[RequestClass(name="chat", ttft_s=0.5, tpot_s=tpot_s)],
    )
    return Load(workload=workload)


def plan(fleet: int, load: Load) -> Plan:
    return made_plan(
        trace=TRACE,
        profile=PROFILE,
        num_devices=2,
        policy=None,
        seed=0,
        num_jobs=1,
        progress=lambda *_: None,
        goal=Goal(percentile=90),
        load=load,
        fleet=fleet,
    )


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(MOST_DEVICES, load_of())


@pytest.fixture(scope="module")
def fleet(made: Plan) -> Fleet:
    assert made.fleet is not None
    return made.fleet


def test_the_fleet_keeps_its_limits_within_its_devices(fleet: Fleet) -> None:
    assert fleet.is_enough
    assert fleet.num_devices <= MOST_DEVICES
    assert fleet.point.attained >= 0.9
    assert fleet.point.rate == pytest.approx(RATE / fleet.num_replicas)
    assert fleet.tokens_per_s == pytest.approx(RATE * 24, rel=0.05)  # outputs have 24 tokens on average


def test_no_option_needs_fewer_devices(made: Plan, fleet: Fleet) -> None:
    """Every option with every number of replicas, each with the requests that come to one of them."""
    options, _ = feasible_options(PROFILE, TRACE, num_devices=2)
    load, fewest = load_of(), math.inf
    for option in options:
        candidate = Candidate(
            policy=option.policy.name,
            shape=shape_of(option.policy),
            groups=dict(option.groups),
            prediction=made.chosen.prediction,
        )
        width = sum(len(group) for group in option.groups.values())
        for count in range(1, MOST_DEVICES // width + 1):
            served = PREDICTOR.serve(
                Setup.of(candidate),
                replica_share(load.workload, count, classes=load.goal.classes),
                goal=load.goal,
                options=load.options,
            )
            if load.goal.accepts(sum(record.meets_limits for record in served.records) / len(served.records)):
                fewest = min(fewest, count * width)
                break
    # The search counts steady requests only: one replica more is within the noise of 100 requests.
    assert fleet.num_devices <= fewest + fleet.chosen.num_devices


def test_a_fleet_says_of_a_replicas_share_what_a_plan_and_a_schedule_say(made: Plan, fleet: Fleet) -> None:
    load = load_of()
    assert made.under_load is not None
    share = with_workload(Planned(plan=made, profile=PROFILE, trace=TRACE), load).workload
    assert share is not None
    predicted = made.under_load.predictions[made.chosen.policy]
    found = PREDICTOR.serve(
        Setup.of(made.chosen), share, goal=made.under_load.goal, options=made.under_load.options_of(made.chosen.policy)
    )
    assert found.metrics == predicted.metrics
    assert found.method == predicted.method
    assert fleet.draft_lengths == tuple(
        draft_schedule(PROFILE, TRACE, num_devices=fleet.chosen.num_devices, max_running=load.options.max_running)
    )


def test_every_place_to_draft_is_compared_and_pools_and_a_control_are_tried(made: Plan, fleet: Fleet) -> None:
    drafting = {kind.drafting for kind in fleet.kinds}
    assert {Drafting.NOWHERE, Drafting.COLOCATED, Drafting.OWN} <= drafting
    assert any(kind.control == "goodput" for kind in fleet.kinds)
    assert fleet.chosen.drafting is not Drafting.POOL
    assert made.chosen.control == (fleet.chosen.control or None)
    assert all(candidate.control is None for candidate in made.alternatives)


def test_the_front_rises_in_one_and_falls_in_the_other(fleet: Fleet) -> None:
    front = fleet.front
    assert front
    users = [point.user_tokens_per_s for _, point in front]
    devices = [point.tokens_per_s / kind.num_devices for kind, point in front]
    assert users == sorted(users)
    assert devices == sorted(devices, reverse=True)
    assert all(point.keeps for _, point in front)


def test_more_than_all_devices_can_serve_is_said_to_be_too_much() -> None:
    found = plan(1, load_of(rate=300.0, num_requests=40)).fleet
    assert found is not None
    assert not found.is_enough
    assert found.num_devices == 1


def test_a_fleet_for_clients_has_the_fewest_replicas_that_keep_their_limits() -> None:
    """Each replica is simulated with its share of the clients, who think between their requests."""
    workload = make_workload(
        Arrivals(process=Process.CLOSED, num_clients=24),
        num_requests=240,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=16),
        output_tokens=Lengths(distribution=Distribution.UNIFORM, least=16, most=32),
        classes=[RequestClass(name="chat", ttft_s=0.5, tpot_s=TPOT_S)],
        prefixes=Prefixes(turns=3, think_time_s=0.1),
    )
    made = plan(MOST_DEVICES, Load(workload=workload))
    assert made.fleet is not None
    assert (made.fleet.unit, made.fleet.rate, made.fleet.is_enough) == ("clients", 24, True)
    count = made.fleet.num_replicas
    assert count > 1
    assert made.fleet.point.rate == math.ceil(24 / count)

    def attained(replicas: int) -> float:
        load = Load(workload=workload, goal=Goal(percentile=90))
        share = replica_share(workload, replicas, classes=load.goal.classes)
        served = PREDICTOR.serve(Setup.of(made.chosen), share, goal=load.goal, options=load.options)
        return sum(record.meets_limits for record in served.records) / len(served.records)

    # All requests count here, and the first ones find an idle replica.
    assert attained(count + 1) >= 0.9
    assert attained(count) > attained(count - 1)


def test_a_load_without_limits_or_rate_is_refused() -> None:
    workload = load_of().workload.model_copy(update={"classes": (RequestClass(name="chat"),)})
    with pytest.raises(ValueError, match="there are no limits to keep"):
        SearchOptions(load=Load(workload=workload), fleet=4).check(num_devices=2)
