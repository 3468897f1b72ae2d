"""Many requests in the simulator: one at a time as before, and laws of queues as oracles."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import simpy

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import POLICIES, Layout, Policy, make_policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.driver import simulate
from swiftspec.simulator.jobs import Job, ServingRun
from swiftspec.simulator.serving import Serving
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import Sharing, SharingCost
from swiftspec.timing.timeline import Phase
from tests.builders import SPLIT, chain_trace, constant_profile, machine_profile, profile, step_point, with_guesses
from tools.iid_trace import synthesise_trace

TRACE = with_guesses(synthesise_trace((0.6, 0.2, 0.1), prompt_lengths=(5, 3, 40, 7), num_tokens=60, seed=1))


def serving(policy: Policy, machine: Profile, trace: AcceptanceTrace = TRACE, **limits: int) -> Serving:
    degrees = {Role.TARGET: max(1, policy.target_groups), Role.DRAFT: 1}
    admission = {key: value for key, value in limits.items() if key in AdmissionLimits.__slots__}
    batch: dict[str, Any] = {key: value for key, value in limits.items() if key not in admission}
    return Serving(
        machine.latencies,
        trace,
        policy,
        degrees=degrees,
        admission=AdmissionLimits(**{"max_running": 8, **admission}),
        batch=BatchLimits(**{"prefill_rows": 1000, **batch}),
    )


def jobs(count: int, *, gap_s: float = 0.0, tokens: int = 40, trace: AcceptanceTrace = TRACE) -> list[Job]:
    num_prompts = len(trace.prompts)
    return [
        Job(arrival_s=number * gap_s, prompt_index=number % num_prompts, output_tokens=tokens)
        for number in range(count)
    ]


def outputs(run: ServingRun) -> list[bool]:
    """Whether each request's output is the traced one."""
    return [request.output == request.text.output for request in run.requests]


@pytest.mark.parametrize("name", POLICIES)
def test_one_request_has_the_timeline_that_it_had_alone(name: str) -> None:
    policy = make_policy(name)
    machine = machine_profile(num_devices=3)
    degrees = {Role.TARGET: policy.target_groups, Role.DRAFT: 1}
    (alone,) = simulate(policy, degrees=degrees, profile=machine, trace=TRACE, prompt_indices=[0], seed=3)
    run = serving(policy, machine).run([Job(prompt_index=0, output_tokens=60)], seed=3)
    (request,) = run.requests
    assert request.timeline.spans == alone.spans


@pytest.mark.parametrize("name", POLICIES)
def test_requests_at_once_have_the_outputs_that_they_had_alone(name: str) -> None:
    policy = make_policy(name)
    run = serving(policy, machine_profile(num_devices=3)).run(jobs(12, gap_s=0.02))
    assert all(outputs(run))
    for request in run.requests:
        assert request.begun_s is not None
        assert request.arrival_s <= request.begun_s <= request.timeline.commits[0].start_s
        for process in request.timeline.processes:
            spans = [span for span in request.timeline.spans if (span.role, span.group) == process]
            assert all(left.end_s <= right.start_s for left, right in pairwise(spans))


@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES[name].layout is not Layout.DISAGGREGATED])
def test_requests_that_share_steps_take_less_time_together_than_in_turn(name: str) -> None:
    together = serving(make_policy(name), machine_profile()).run(jobs(4))
    in_turn = serving(make_policy(name), machine_profile(), max_running=1).run(jobs(4))
    assert together.end_s < 0.6 * in_turn.end_s


def test_steps_of_a_group_do_not_overlap_and_hold_the_rows_of_all_requests() -> None:
    run = serving(SwiftSpec(verify_rows=4), machine_profile()).run(jobs(6, gap_s=0.01))
    for role in Role:
        steps = [step for step in run.steps if step.role is role]
        assert all(left.end_s <= right.start_s for left, right in pairwise(steps))
        spans = [
            span
            for request in run.requests
            for span in request.timeline.of(role)
            if span.phase in (Phase.PREFILL, Phase.VERIFY, Phase.EXPAND)
        ]
        assert sum(step.num_rows for step in steps) == sum(span.rows for span in spans)
        assert max(step.num_requests for step in steps) > 1


def test_a_small_cache_makes_requests_give_way_and_changes_no_output() -> None:
    policy = SwiftSpec(verify_rows=4)
    run = serving(policy, machine_profile(), num_blocks=14, tree_rows=policy.target_rows).run(jobs(8))
    assert all(outputs(run))
    assert sum(request.num_preemptions for request in run.requests) > 0


def test_more_than_the_queue_holds_is_refused() -> None:
    run = serving(Autoregressive(), machine_profile(), max_running=2, max_waiting=3).run(jobs(9))
    assert run.num_refused == 4
    assert [request.begun_s is None for request in run.requests] == [False] * 5 + [True] * 4


def test_a_long_prompt_in_chunks_does_not_hold_up_those_that_decode() -> None:
    trace = synthesise_trace((0.7,), prompt_lengths=(2000, 4), num_tokens=60, seed=0)
    machine = machine_profile()
    asked = [Job(prompt_index=1, output_tokens=60), Job(arrival_s=0.2, prompt_index=0, output_tokens=5)]

    def longest_gap_s(chunk: int) -> float:
        run = serving(Autoregressive(), machine, trace, prefill_rows=chunk).run(asked)
        commits = run.requests[0].timeline.commits
        return max(right.end_s - left.end_s for left, right in pairwise(commits))

    assert longest_gap_s(32) < 0.2 * longest_gap_s(5000)


def linear_profile(*, base_s: float, row_s: float) -> Profile:
    """Every target forward, a prompt's too, takes base + rows * row."""

    def points(phase: Phase) -> list[tuple[int, float]]:
        return [(rows, base_s + rows * row_s) for rows in (1, 64, 128)]

    steps = tuple(
        step_point(Role.TARGET, phase, [seconds], rows=rows, context=0 if phase is Phase.PREFILL else 64)
        for phase in (Phase.VERIFY, Phase.PREFILL)
        for rows, seconds in points(phase)
    )
    return profile(steps, ())


BASE_S, ROW_S = 0.010, 0.001


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_closed_loop_of_n_clients_has_steps_of_a_plus_b_n(clients: int) -> None:
    trace = chain_trace(num_tokens=50, prompts=8)
    machine = linear_profile(base_s=BASE_S, row_s=ROW_S)
    run = serving(Autoregressive(), machine, trace).run(jobs(8, tokens=50, trace=trace), num_clients=clients)
    # Prompts of four tokens are read beside the others' single rows.
    tpot_s = np.mean([request.timeline.tpot_s for request in run.requests])
    assert tpot_s == pytest.approx(BASE_S + ROW_S * clients, rel=0.02)


SEQUENCE_S, SLOT_S = 0.0005, 1e-5


def shared_profile(*, sequence_s: float, slot_s: float) -> Profile:
    """As `linear_profile`, and every further sequence costs something."""
    cost = SharingCost(
        role=Role.TARGET,
        degree=1,
        peer_busy=False,
        sequence_s=sequence_s,
        slot_s=slot_s,
        provenance=Provenance.MEASURED,
    )
    return linear_profile(base_s=BASE_S, row_s=ROW_S).model_copy(update={"sharing": Sharing(costs=(cost,))})


@pytest.mark.parametrize("clients", [1, 2, 4, 8])
def test_further_requests_of_a_step_cost_what_the_profile_says(clients: int) -> None:
    """Steps of a closed loop take exactly a + b N + d (N - 1)."""
    trace = chain_trace(num_tokens=50, prompts=8)
    machine = shared_profile(sequence_s=SEQUENCE_S, slot_s=0.0)
    run = serving(Autoregressive(), machine, trace).run(jobs(8, tokens=50, trace=trace), num_clients=clients)
    full = [step for step in run.steps if step.phase is Phase.VERIFY and step.num_rows == clients]
    assert len(full) > 40
    expected_s = BASE_S + ROW_S * clients + SEQUENCE_S * (clients - 1)
    assert [step.end_s - step.start_s for step in full] == pytest.approx([expected_s] * len(full))


def test_further_requests_cost_more_with_longer_texts() -> None:
    trace = chain_trace(num_tokens=300, prompts=2)
    machine = shared_profile(sequence_s=0.0, slot_s=SLOT_S)
    run = serving(Autoregressive(), machine, trace).run(jobs(2, tokens=300, trace=trace), num_clients=2)
    first, *_, last = [step.end_s - step.start_s for step in run.steps if step.num_rows == step.num_requests == 2]
    assert last - first == pytest.approx(295 * SLOT_S, abs=16 * SLOT_S)


@pytest.fixture(scope="module")
def poisson_run() -> tuple[ServingRun, float, int]:
    """2000 requests of 30 tokens at half of saturation, the arrival rate, and the tokens of each."""
    num_tokens, load, count = 30, 0.5, 2000
    rate = load / (num_tokens * ROW_S)
    trace = synthesise_trace((1.0,), prompt_lengths=(1,), num_tokens=num_tokens, seed=0)
    rng = np.random.default_rng(5)
    gaps_s = rng.exponential(1 / rate, count)
    gaps_s *= count / rate / gaps_s.sum()
    asked = [Job(arrival_s=time_s, prompt_index=0, output_tokens=num_tokens) for time_s in np.cumsum(gaps_s).tolist()]
    machine = linear_profile(base_s=BASE_S, row_s=ROW_S)
    return serving(Autoregressive(), machine, trace, max_running=500, max_rows=1000).run(asked), rate, num_tokens


def test_littles_identity_is_exact(poisson_run: tuple[ServingRun, float, int]) -> None:
    """The area under the number of requests in the system is the sum of their times there."""
    run, *_ = poisson_run
    sojourns_s = [request.ended_s - request.arrival_s for request in run.requests if request.ended_s is not None]
    changes = sorted(
        [(request.arrival_s, 1) for request in run.requests]
        + [(request.ended_s, -1) for request in run.requests if request.ended_s is not None]
    )
    area, number = 0.0, 0
    for (time_s, change), (next_s, _) in pairwise(changes):
        number += change
        area += number * (next_s - time_s)
    assert len(sojourns_s) == len(run.requests)
    assert area == pytest.approx(sum(sojourns_s), rel=1e-9)


def test_requests_that_share_a_batch_follow_the_negative_binomial_law(
    poisson_run: tuple[ServingRun, float, int],
) -> None:
    """Steps of a + b B seconds are a queue whose speed is shared: B is negative binomial with r = 1 + a / b."""
    run, rate, num_tokens = poisson_run
    load = rate * num_tokens * ROW_S
    shape = 1 + BASE_S / ROW_S
    mean_batch = shape * load / (1 - load)
    # Joining takes half a step more, on average.
    expected_s = num_tokens * (BASE_S + ROW_S) / (1 - load) + (BASE_S + ROW_S * mean_batch) / 2
    e2e_s = [request.timeline.e2e_s for request in run.requests]
    assert np.mean(e2e_s) == pytest.approx(expected_s, rel=0.03)
    tpot_s = np.mean([request.timeline.tpot_s for request in run.requests])
    assert tpot_s == pytest.approx((BASE_S + ROW_S) / (1 - load), rel=0.03)
    # By time; the machine is empty at rare moments only.
    seconds = np.array([step.end_s - step.start_s for step in run.steps])
    batch = np.array([step.num_requests for step in run.steps])
    mean = np.average(batch, weights=seconds)
    variance = np.average((batch - mean) ** 2, weights=seconds)
    assert mean == pytest.approx(mean_batch, rel=0.05)
    assert variance == pytest.approx(shape * load / (1 - load) ** 2, rel=0.2)


def test_one_at_a_time_waits_as_in_a_queue_of_one_server() -> None:
    """M/D/1: rho S / (2 (1 - rho))."""
    service_s, load, count = 0.3, 0.5, 4000
    trace = synthesise_trace((1.0,), prompt_lengths=(1,), num_tokens=3, seed=0)
    machine = linear_profile(base_s=service_s / 3, row_s=0.0)
    rng = np.random.default_rng(2)
    times_s = np.cumsum(rng.exponential(service_s / load, count))
    asked = [Job(arrival_s=time_s, prompt_index=0, output_tokens=3) for time_s in times_s.tolist()]
    run = serving(Autoregressive(), machine, trace, max_running=1).run(asked)
    waits_s = [request.begun_s - request.arrival_s for request in run.requests if request.begun_s is not None]
    assert np.mean(waits_s) == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.1)


def test_a_prompt_that_was_not_traced_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_index is 4; expected one of the trace's 4"):
        serving(Autoregressive(), machine_profile()).run([Job(prompt_index=4, output_tokens=5)])


def test_a_constant_machine_makes_the_gathered_steps_countable() -> None:
    """Disaggregated, verifications of both requests share steps from the first on, though the draft's hops differ."""
    machine = constant_profile(expand_s=0.001, verify_s=0.01, prefill_s=0.01, host_s={Phase.WAIT: 1e-4})
    run = serving(SwiftSpec(verify_rows=4), machine).run(jobs(2, tokens=20))
    verifications = [step for step in run.steps if step.phase is Phase.VERIFY]
    alone = sum(step.num_requests == 1 for step in verifications)
    gathered = Serving(
        machine.latencies,
        TRACE,
        SwiftSpec(verify_rows=4),
        degrees=SPLIT,
        admission=AdmissionLimits(max_running=2),
        batch=BatchLimits(gather_s=0.004),
    ).run(jobs(2, tokens=20))
    gathered_alone = sum(step.num_requests == 1 for step in gathered.steps if step.phase is Phase.VERIFY)
    assert gathered_alone <= alone


def test_texts_are_as_long_as_wanted() -> None:
    asked = [
        Job(prompt_index=3, prompt_tokens=100, output_tokens=150),
        Job(prompt_index=2, prompt_tokens=7, output_tokens=3),
    ]
    for policy in (Autoregressive(), SwiftSpec(verify_rows=4)):
        run = serving(policy, machine_profile()).run(asked)
        first, second = run.requests
        third, fourth = TRACE.prompts[3], TRACE.prompts[0]
        assert first.text.prompt[-14:] == [*third.prompt_tokens.tolist()] * 2
        assert len(first.text.prompt) == 100
        assert first.output[:61] == [*third.target_tokens.tolist(), fourth.target_tokens[0]]
        assert len(first.output) == 150
        assert second.text.prompt == TRACE.prompts[2].prompt_tokens[-7:].tolist()
        assert second.output == TRACE.prompts[2].target_tokens[:3].tolist()


@pytest.mark.parametrize("name", POLICIES)
def test_an_open_server_serves_what_others_submit_in_their_time(name: str) -> None:
    """Alone, a request takes as long as in a simulation of its own, whenever it comes."""
    policy, machine, job = (
        make_policy(name),
        machine_profile(num_devices=3, noise=0.0),
        Job(prompt_index=0, output_tokens=60),
    )
    (alone,) = serving(policy, machine).run([job], seed=3).requests
    env = simpy.Environment(initial_time=5.0)
    submitted = serving(policy, machine).open(env, seed=3).submit(job)
    env.run(submitted.done)
    assert (submitted.arrival_s, submitted.output) == (5.0, alone.output)
    assert submitted.ended_s == pytest.approx(5.0 + (alone.ended_s or 0.0))


@pytest.mark.parametrize("name", POLICIES)
def test_a_scored_prompt_is_one_prefill_of_the_target_whatever_the_policy(name: str) -> None:
    policy, machine = make_policy(name), machine_profile(num_devices=3, noise=0.0)
    env = simpy.Environment()
    server = serving(policy, machine).open(env)
    scored = server.submit(Job(prompt_index=0, prompt_tokens=100, output_tokens=0, is_scored=True))
    env.run(scored.done)
    assert [(span.phase, span.rows, span.role) for span in scored.spans] == [(Phase.PREFILL, 99, Role.TARGET)]
    others = [server.submit(job) for job in jobs(3)]
    again = server.submit(Job(prompt_index=1, prompt_tokens=50, output_tokens=0, is_scored=True))
    env.run(env.all_of([each.done for each in (*others, again)]))
    assert all(other.output == other.text.output for other in others)
    assert sum(span.rows for span in again.spans) == 49


@pytest.mark.parametrize("clients", [None, 1])
def test_a_turn_waits_for_the_answer_before_and_the_time_to_think(clients: int | None) -> None:
    last = Job(arrival_s=0.0, prompt_index=2, output_tokens=20)
    second = Job(arrival_s=0.0, prompt_index=1, output_tokens=20, next_turn=last, think_time_s=3.0)
    first = Job(arrival_s=0.0, prompt_index=0, output_tokens=20, next_turn=second, think_time_s=2.0)
    other = Job(arrival_s=0.5, prompt_index=3, output_tokens=20)
    run = serving(Autoregressive(), machine_profile(num_devices=1)).run([first, other], num_clients=clients)
    by_job = {request.job.prompt_index: request for request in run.requests}
    ends_s = [ended_s for index in range(4) if (ended_s := by_job[index].ended_s) is not None]
    assert len(ends_s) == 4
    assert by_job[1].arrival_s == pytest.approx(ends_s[0] + 2.0)
    assert by_job[2].arrival_s == pytest.approx(ends_s[1] + 3.0)
    assert by_job[3].arrival_s == pytest.approx(ends_s[2] if clients else 0.5)
