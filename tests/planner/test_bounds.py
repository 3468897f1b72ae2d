import pytest

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Goal
from swiftspec.planner.search.bounds import ClosedForms
from swiftspec.planner.search.space import Option
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.mirror import Mirror
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role
from swiftspec.policies.trees.easyspec import EasySpec
from swiftspec.simulator.driver import Simulator
from tests.builders import constant_profile, machine_profile, with_guesses
from tools.iid_trace import synthesise_trace

ONE = {Role.TARGET: (0,)}
SPLIT = {Role.TARGET: (0,), Role.DRAFT: (1,)}
RANKS = (0.6, 0.2, 0.1, 0.05)


@pytest.mark.parametrize("cost_ratio", [3.0, 12.0, 40.0])
@pytest.mark.parametrize("ranks", [(0.3, 0.2), RANKS, (0.95, 0.03)])
def test_no_simulation_is_faster_than_its_bound(ranks: tuple[float, ...], cost_ratio: float) -> None:
    trace = with_guesses(synthesise_trace(ranks, prompt_lengths=(8, 20), num_tokens=100, seed=1))
    profile = machine_profile(cost_ratio=cost_ratio)
    closed, simulator = ClosedForms(profile, trace), Simulator(profile, trace)
    options = [
        *(Option(policy=SerialChain(num_draft_tokens=n), groups=ONE) for n in (1, 4, 10)),
        *(Option(policy=SerialTree(verify_rows=n, expand_rows=2, expansions=3), groups=ONE) for n in (4, 12)),
        *(Option(policy=SwiftSpec(verify_rows=n, expand_rows=4), groups=SPLIT) for n in (4, 8, 24)),
        Option(policy=SwiftSpec(verify_rows=12, least_probability=0.1), groups=SPLIT),
        Option(policy=Mirror(num_draft_tokens=4, guesses=1), groups=SPLIT),
        Option(policy=EasySpec(verify_rows=8, top_k=2, depth=3), groups=ONE),
        *(Option(policy=Dsi(num_draft_tokens=n), groups={**SPLIT, Role.TARGET: (0, 2)}) for n in (1, 4)),
    ]
    for option in options:
        metrics = measure(simulator.run(option.policy, degrees=option.degrees).timelines)
        assert metrics.figures.tokens_per_s <= closed.bound(option, Goal())


def test_bound_of_a_flawless_draft_is_reached_but_for_the_prefill() -> None:
    trace = synthesise_trace((1.0,), prompt_lengths=(8,), num_tokens=500, seed=1)
    profile = constant_profile(expand_s=1.0, verify_s=5.0, prefill_s=0.001)
    option = Option(policy=SerialChain(num_draft_tokens=4), groups=ONE)
    metrics = measure(Simulator(profile, trace).run(option.policy, degrees=option.degrees).timelines)
    assert ClosedForms(profile, trace).bound(option, Goal()) == pytest.approx(5 / 9)
    assert metrics.figures.tokens_per_s == pytest.approx(5 / 9, rel=1e-3)


def test_bound_of_a_busier_round_is_lower() -> None:
    trace = synthesise_trace(RANKS, prompt_lengths=(8,), num_tokens=100, seed=1)
    closed = ClosedForms(machine_profile(), trace)
    bounds = [
        closed.bound(Option(policy=SerialTree(verify_rows=8, expand_rows=2, expansions=expansions), groups=ONE), Goal())
        for expansions in (2, 4, 8)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]


def test_nothing_bounds_decoding_without_a_draft() -> None:
    trace = synthesise_trace(RANKS, prompt_lengths=(8,), num_tokens=100, seed=1)
    option = Option(policy=Autoregressive(), groups=ONE)
    assert ClosedForms(machine_profile(), trace).bound(option, Goal()) == float("inf")


def test_estimate_of_a_serial_tree_is_the_best_static_tree_over_the_round() -> None:
    trace = synthesise_trace((0.6, 0.2, 0.1), prompt_lengths=(8,), num_tokens=50_000, seed=1)
    closed = ClosedForms(constant_profile(expand_s=1.0, verify_s=5.0), trace)
    option = Option(policy=SerialTree(verify_rows=8, expand_rows=4, expansions=3, num_candidates=3), groups=ONE)
    assert closed.estimate(option) == pytest.approx(2.716 / 8, rel=0.01)


def test_estimate_of_a_parallel_chain_is_as_deep_as_its_tokens() -> None:
    """One draft forward of 1 s and one verification of 7 s, whatever the number of tokens, accepted at 0.8 each."""
    profile = constant_profile(expand_s=1.0, verify_s=7.0)
    closed = ClosedForms(profile, synthesise_trace([0.8], prompt_lengths=[8] * 10, num_tokens=400, seed=1))
    option = Option(policy=ParallelChain(num_draft_tokens=3), groups=ONE)
    assert closed.estimate(option) == pytest.approx((1 + 0.8 + 0.8**2 + 0.8**3) / 8, rel=0.02)
