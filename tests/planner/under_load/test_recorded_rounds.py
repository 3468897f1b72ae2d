"""Recorded rounds under this package's engine, against the event simulation of the same requests."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import EVENTS, RECORDED_ROUNDS
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import prepare
from swiftspec.planner.planned_model import planned_pair
from swiftspec.planner.under_load.loads import Requests, closed_loop_workload
from swiftspec.planner.under_load.own_engine import CutShortError, OwnEngineRun
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.planner.under_load.rounds import Round, rounds_of
from swiftspec.policies import Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.trees.heads import HeadChain
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.jobs import Job, ServingRun
from swiftspec.simulator.latency import LatencyTable
from swiftspec.simulator.serving import Serving
from swiftspec.simulator.setup import Setup

BUNDLED = Path(__file__).parents[3] / "profiles" / "demo-sapphire-rapids-2-cores"
COUNT, SEED = 60, 5
DEGREES = {Role.TARGET: 2}
CHAIN = SerialChain(num_draft_tokens=3)
_Floats = npt.NDArray[np.float64]


class Machine(NamedTuple):
    """A profile and a trace, with the limits and a rate that suit them."""

    profile: Profile
    trace: AcceptanceTrace
    max_running: int
    prefill_rows: int
    rate: float


@cache
def machine(name: str) -> Machine:
    if name == "cpu":
        trace = AcceptanceTrace.load(BUNDLED / "trace.npz")
        return Machine(Profile.load(BUNDLED / "profile.json"), trace, max_running=8, prefill_rows=32, rate=2.0)
    models = planned_pair("qwen3-14b", "qwen3-0.6b" if name == "gpu" else name)
    on = Deployment(device="h100", num_devices=2, output_tokens=96)
    inputs = prepare(on, target=models[0], draft=models[1])
    return Machine(inputs.profile, inputs.trace, max_running=64, prefill_rows=128, rate=20.0)


def load(on: Machine, *, is_closed: bool) -> Requests:
    rng = np.random.default_rng(3)
    return Requests(
        arrival_s=np.zeros(COUNT) if is_closed else np.cumsum(rng.exponential(1 / on.rate, COUNT)),
        prompt_tokens=rng.integers(100, 200, COUNT),
        output_tokens=rng.integers(32, 64, COUNT),
        num_clients=8 if is_closed else None,
    )


def both(on: Machine, policy: Policy, requests: Requests) -> tuple[Sequence[_Floats], Sequence[_Floats]]:
    """TTFT, TPOT and E2E of every request: of the event simulation, and of the very rounds that it had."""
    admission = AdmissionLimits(max_running=on.max_running, tree_rows=policy.target_rows)
    batch = BatchLimits(prefill_rows=on.prefill_rows)
    prices = LatencyTable(on.profile.latencies)
    serving = Serving(prices, on.trace, policy, degrees=DEGREES, admission=admission, batch=batch)
    lengths = zip(requests.arrival_s, requests.prompt_tokens, requests.output_tokens, strict=True)
    jobs = [
        Job(
            arrival_s=float(arrival_s),
            prompt_index=number % len(on.trace.prompts),
            prompt_tokens=int(prompt_tokens),
            output_tokens=int(output_tokens),
        )
        for number, (arrival_s, prompt_tokens, output_tokens) in enumerate(lengths)
    ]
    events = serving.run(jobs, num_clients=requests.num_clients, seed=SEED)
    of_each = [list(rounds_of(request.timeline)) for request in events.requests]
    run = OwnEngineRun(
        requests,
        policy,
        prices,
        [one for rounds in of_each for one in rounds],
        degrees=dict.fromkeys(Role, DEGREES[Role.TARGET]),
        ranks={},
        admission=admission,
        batch=batch,
        first_rounds=np.cumsum([0, *map(len, of_each)])[:-1].tolist(),
        seed=SEED,
    ).run()
    return times(events, requests), (run.ttft_s, run.tpot_s, run.e2e_s)


def times(events: ServingRun, requests: Requests) -> Sequence[_Floats]:
    timelines = [request.timeline for request in events.requests]
    ttft_s = np.array([each.commits[0].end_s - each.start_s for each in timelines])
    e2e_s = np.array([each.commits[-1].end_s - each.start_s for each in timelines])
    return ttft_s, (e2e_s - ttft_s) / np.maximum(requests.output_tokens - 1, 1), e2e_s


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("cpu", Autoregressive()),
        ("cpu", CHAIN),
        ("cpu", PromptLookup()),
        ("cpu", SerialTree(verify_rows=8)),
        ("gpu", Autoregressive()),
        ("gpu", CHAIN),
        ("eagle3", HeadChain(num_draft_tokens=3)),
        ("gpu", SerialTree(verify_rows=8)),
    ],
)
def test_recorded_rounds_take_as_long_as_events(name: str, policy: Policy, is_closed: bool) -> None:
    on = machine(name)
    for events, rounds in zip(*both(on, policy, load(on, is_closed=is_closed)), strict=True):
        for figure in (np.mean, lambda all_s: np.percentile(all_s, 90), lambda all_s: np.percentile(all_s, 99)):
            assert figure(rounds) == pytest.approx(figure(events), rel=0.01)


@pytest.mark.parametrize("policy", [Autoregressive(), CHAIN])
def test_plain_decoding_and_chains_agree_to_the_last_digits(policy: Policy) -> None:
    on = machine("gpu")
    for events, rounds in zip(*both(on, policy, load(on, is_closed=True)), strict=True):
        np.testing.assert_allclose(rounds, events, rtol=1e-9)


def predictor(name: str) -> Predictor:
    on = machine(name)
    return Predictor(on.profile, on.trace)


def test_a_verification_that_has_to_share_its_rows_is_simulated_by_events() -> None:
    found = predictor("gpu")
    long = Setup(policy=SerialChain(num_draft_tokens=7), degrees=DEGREES)
    few, many = (found.closed_loop(long, clients, prompt_tokens=32, output_tokens=16) for clients in (4, 16))
    assert (few.method, many.method) == (RECORDED_ROUNDS, EVENTS)


def test_rows_that_do_not_fit_have_no_record() -> None:
    on = machine("gpu")
    requests = Requests(arrival_s=np.zeros(4), prompt_tokens=np.full(4, 16), output_tokens=np.full(4, 8), num_clients=4)
    run = OwnEngineRun(
        requests,
        SerialChain(),
        LatencyTable(on.profile.latencies),
        [Round((1, 1), 3, 2)],
        degrees=dict.fromkeys(Role, 2),
        ranks={},
        admission=AdmissionLimits(max_running=16),
        batch=BatchLimits(max_rows=8),
        first_rounds=[0] * 4,
    )
    with pytest.raises(CutShortError):
        run.run()


@pytest.mark.parametrize(
    "changes", [{"replay": False}, {"max_waiting": 3}, {"control": "goodput"}], ids=["in full", "refusals", "a control"]
)
def test_what_rounds_cannot_tell_is_simulated_by_events(changes: dict[str, Any]) -> None:
    workload = closed_loop_workload(2, 32, 16)
    goal, setup = Goal(classes=workload.classes), Setup(policy=CHAIN, degrees=DEGREES)
    usual = LoadOptions(max_running=2, prefill_rows=128)
    assert predictor("gpu").serve(setup, workload, goal=goal, options=usual).method == RECORDED_ROUNDS
    found = predictor("gpu").serve(setup, workload, goal=goal, options=usual.model_copy(update=changes))
    assert found.method == EVENTS


def test_requests_that_give_way_end_all_the_same() -> None:
    """With a cache for three of eight requests, each text is read again, and nothing is written twice."""
    setup = Setup(policy=CHAIN, degrees=DEGREES)
    found = predictor("gpu").closed_loop(setup, 8, prompt_tokens=64, output_tokens=64, num_blocks=28)
    assert found.metrics.num_preemptions > 0
    assert found.metrics.completed == 24
    roomy = predictor("gpu").closed_loop(setup, 8, prompt_tokens=64, output_tokens=64)
    assert roomy.metrics.num_preemptions == 0
    assert found.metrics.e2el_s.mean > roomy.metrics.e2el_s.mean


def test_a_request_that_names_its_prompt_has_its_rounds() -> None:
    """Of the bundled prompts the one whose rounds bring most tokens, and the one whose bring fewest."""
    found, setup = predictor("cpu"), Setup(policy=CHAIN, degrees=DEGREES)
    prompts = found.trace.prompts
    recorded = found.rounds(setup, range(len(prompts)))
    mean = {index: np.mean([one.tokens for one in rounds]) for index, rounds in recorded.items()}
    worst, best = min(mean, key=lambda index: mean[index]), max(mean, key=lambda index: mean[index])
    tokens = []
    for index in (worst, best):
        workload = closed_loop_workload(1, 16, 32)
        named = [request.model_copy(update={"prompt_id": prompts[index].prompt_id}) for request in workload.requests]
        workload = workload.model_copy(update={"requests": tuple(named)})
        run = found.serve(setup, workload, goal=Goal(classes=workload.classes), options=LoadOptions(max_running=1))
        tokens.append(run.metrics.tokens_per_round)
    assert tokens[1] > 1.2 * tokens[0]
