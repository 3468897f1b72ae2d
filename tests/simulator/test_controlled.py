"""Controls under load: what is drafted and verified in the simulator, against fixed lengths and no draft."""

from functools import cache

import pytest

from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.controls.named import named_control
from swiftspec.simulator.jobs import Job, ServingRun
from swiftspec.simulator.serving import Serving
from swiftspec.timing.step_costs import StepCosts
from tests.builders import machine_profile
from tools.iid_trace import synthesise_trace

LEARNING = ("goodput", "goodput-per-request", "worth", "slo")
FIXED = tuple(f"fixed:{length}" for length in (0, 1, 2, 3, 4, 6))
CHAIN = SerialChain(num_draft_tokens=6)
DEGREES = {Role.TARGET: 1, Role.DRAFT: 1}
COST_RATIOS = (12.0, 4.0)  # draft forwards that one of the target takes as long as
GOOD, USELESS = 0.8, 1e-9  # acceptance of a draft's token
NUM_TOKENS = 400


@cache
def served(*, clients: int, control: str | None, acceptance: float = GOOD, cost_ratio: float = 12.0) -> ServingRun:
    """A closed loop of chains under a control; decoding without a draft if there is no control."""
    latencies = machine_profile(cost_ratio=cost_ratio, noise=0.0).latencies
    steering = None
    if control is not None:
        costs = StepCosts.of(CHAIN, latencies, degrees=DEGREES, ranks={}, context=NUM_TOKENS // 2)
        steering = Steering.of(CHAIN, named_control(control), costs)
    serving = Serving(
        latencies,
        synthesise_trace((acceptance,), prompt_lengths=(8,) * 8, num_tokens=NUM_TOKENS, seed=1),
        CHAIN if control is not None else Autoregressive(),
        degrees=DEGREES,
        admission=AdmissionLimits(max_running=8),
        batch=BatchLimits(prefill_rows=1000),
        steering=steering,
    )
    num_jobs = max(4, clients)
    jobs = [Job(arrival_s=0.0, prompt_index=index, output_tokens=NUM_TOKENS) for index in range(num_jobs)]
    return serving.run(jobs, num_clients=clients)


def best_fixed(clients: int, cost_ratio: float) -> str:
    return min(FIXED, key=lambda control: served(clients=clients, control=control, cost_ratio=cost_ratio).end_s)


@pytest.mark.parametrize("control", LEARNING)
@pytest.mark.parametrize("clients", [1, 8])
def test_a_useless_draft_costs_next_to_nothing(control: str, clients: int) -> None:
    plain_s = served(clients=clients, control=None, acceptance=USELESS).end_s
    assert plain_s / served(clients=clients, control=control, acceptance=USELESS).end_s > 0.97


@pytest.mark.parametrize("control", ["goodput", "worth"])
@pytest.mark.parametrize("cost_ratio", COST_RATIOS)
@pytest.mark.parametrize("clients", [1, 8])
def test_a_control_is_close_to_the_best_fixed_length(control: str, cost_ratio: float, clients: int) -> None:
    best_s = served(clients=clients, control=best_fixed(clients, cost_ratio), cost_ratio=cost_ratio).end_s
    # The runs are short, and contain the rounds in which the control knows little.
    assert best_s / served(clients=clients, control=control, cost_ratio=cost_ratio).end_s > 0.95


def test_the_best_fixed_length_depends_on_the_load() -> None:
    assert best_fixed(1, min(COST_RATIOS)) > best_fixed(8, min(COST_RATIOS))


@pytest.mark.parametrize("control", ["fixed:3", *LEARNING])
def test_controls_change_no_output(control: str) -> None:
    run = served(clients=8, control=control)
    assert all(request.output == request.text.output for request in run.requests)
