"""Simulated rounds per second, which determine the planner's time."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from swiftspec.artifacts.metrics import measure
from swiftspec.policies import Policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.chains.serial import SerialTree
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from tests.builders import machine_profile
from tools.iid_trace import synthesise_trace


@pytest.mark.parametrize("policy", [SerialTree(), SwiftSpec()], ids=lambda policy: policy.name)
def test_simulated_rounds(benchmark: BenchmarkFixture, policy: Policy) -> None:
    trace = synthesise_trace([0.7, 0.12, 0.05, 0.03], prompt_lengths=[64] * 4, num_tokens=128, seed=0)
    simulator = Simulator(machine_profile(), trace)
    simulation = benchmark(simulator.run, policy, degrees=dict.fromkeys(Role, 1), seed=0)
    rounds = measure(simulation.timelines).rounds
    assert rounds < 4 * 128
    if benchmark.stats:  # absent in a smoke run
        benchmark.extra_info["rounds_per_s"] = round(rounds / benchmark.stats.stats.median)
