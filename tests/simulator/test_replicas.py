"""Several replicas behind a router, and drafts that targets share."""

from itertools import pairwise

import numpy as np
import pytest

from swiftspec.policies import make_policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.scheduler.routing import Replicas
from swiftspec.simulator.jobs import Job, ServingRun
from tests.builders import chain_trace, constant_profile, machine_profile
from tests.simulator.test_serving import TRACE, jobs, linear_profile, outputs, serving


def e2e_s(run: ServingRun) -> list[float]:
    return [request.timeline.e2e_s for request in run.requests]


def poisson(rate: float, count: int, *, tokens: int = 30, num_prompts: int = 4) -> list[Job]:
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(1 / rate, count)).tolist()
    return [
        Job(arrival_s=at_s, prompt_index=number % num_prompts, output_tokens=tokens)
        for number, at_s in enumerate(times)
    ]


def test_round_robin_over_n_replicas_is_n_simulations_of_every_nth_request() -> None:
    # Nothing is random here, so that the same requests take exactly the same time.
    trace = chain_trace(num_tokens=30, prompts=4)
    machine = linear_profile(base_s=0.010, row_s=0.002)
    asked = poisson(120.0, 120)
    together = serving(Autoregressive(), machine, trace).run(asked, replicas=Replicas(num_targets=3))
    for number in range(3):
        alone = serving(Autoregressive(), machine, trace).run(asked[number::3])
        assert e2e_s(together)[number::3] == pytest.approx(e2e_s(alone), rel=1e-9)


def test_the_least_loaded_replica_serves_sooner_than_the_next_one() -> None:
    trace = chain_trace(num_tokens=30, prompts=4)
    machine = linear_profile(base_s=0.002, row_s=0.008)
    asked = [
        Job(arrival_s=job.arrival_s, prompt_index=job.prompt_index, output_tokens=5 if number % 3 else 30)
        for number, job in enumerate(poisson(20.0, 300))
    ]
    means = [
        np.mean(e2e_s(serving(Autoregressive(), machine, trace, max_running=64).run(asked, replicas=replicas)))
        for replicas in (Replicas(num_targets=3), Replicas(num_targets=3, router="least-loaded"))
    ]
    assert means[1] < 0.95 * means[0]


@pytest.mark.parametrize("name", ["autoregressive", "serial_tree", "swiftspec", "pearl", "dsi"])
def test_replicas_change_no_output(name: str) -> None:
    policy = make_policy(name)
    run = serving(policy, machine_profile(num_devices=3)).run(jobs(9, gap_s=0.01), replicas=Replicas(num_targets=3))
    assert all(outputs(run))
    assert all(left.end_s <= right.end_s for left, right in pairwise(run.steps))


@pytest.mark.parametrize("name", ["swiftspec", "ssd", "pearl", "specbranch", "amusd", "mirror", "minedraft"])
def test_targets_that_share_a_draft_change_no_output(name: str) -> None:
    run = serving(make_policy(name), machine_profile()).run(
        jobs(10, gap_s=0.01), replicas=Replicas(num_targets=3, num_drafts=1)
    )
    assert all(outputs(run))
    drafts = [step for step in run.steps if step.role is Role.DRAFT]
    assert all(left.end_s <= right.start_s for left, right in pairwise(drafts))
    assert max(step.num_requests for step in drafts) > 1


def test_a_shared_draft_that_takes_no_time_is_as_good_as_ones_own() -> None:
    machine = constant_profile(expand_s=1e-9, verify_s=0.01, prefill_s=1e-6)
    policy = SwiftSpec(verify_rows=4)
    asked = jobs(12, gap_s=0.02)
    means = [
        np.mean(e2e_s(serving(policy, machine).run(asked, replicas=replicas)))
        for replicas in (Replicas(num_targets=4), Replicas(num_targets=4, num_drafts=1))
    ]
    assert means[1] == pytest.approx(means[0], rel=0.02)


def test_a_shared_draft_that_is_slow_is_worse_the_more_targets_share_it() -> None:
    machine = machine_profile(cost_ratio=4.0, noise=0.0)
    asked = jobs(24, gap_s=0.005)
    means = [
        np.mean(
            e2e_s(
                serving(SwiftSpec(verify_rows=4), machine).run(
                    asked, replicas=Replicas(num_targets=4, num_drafts=number)
                )
            )
        )
        for number in (4, 2, 1)
    ]
    assert means[0] < means[1] < means[2]


def test_several_drafts_of_one_target_are_better_than_one_where_drafting_takes_long() -> None:
    machine = machine_profile(cost_ratio=2.0, noise=0.0)
    asked = jobs(16, gap_s=0.005)
    runs = [
        serving(SwiftSpec(verify_rows=4), machine).run(asked, replicas=Replicas(num_drafts=number))
        for number in (None, 1, 2, 4)
    ]
    assert all(all(outputs(run)) for run in runs)
    means = [np.mean(e2e_s(run)) for run in runs]
    assert means[0] == means[1] > means[2] > means[3]


def test_as_many_pools_as_targets_are_the_targets_own_drafts() -> None:
    machine, asked = constant_profile(expand_s=0.001, verify_s=0.01, prefill_s=0.01), jobs(12, gap_s=0.02)
    own, pools = (
        serving(SwiftSpec(verify_rows=4), machine).run(asked, replicas=Replicas(num_targets=3, num_drafts=number))
        for number in (None, 3)
    )
    assert e2e_s(pools) == pytest.approx(e2e_s(own))


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        (Replicas(num_targets=0), "num_targets is 0; expected at least 1"),
        (Replicas(router="random"), "router is 'random'; expected round-robin or least-loaded"),
        (Replicas(num_targets=2, num_drafts=0), "num_drafts is 0; expected at least 1"),
        (Replicas(num_targets=2, num_drafts=1), "num_drafts is 1; autoregressive has no draft that targets could"),
    ],
)
def test_impossible_replicas_are_named(replicas: Replicas, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        serving(Autoregressive(), machine_profile(), TRACE).run(jobs(1), replicas=replicas)
