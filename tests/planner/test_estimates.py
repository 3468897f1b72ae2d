import pytest

from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.option import Option
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.mirror import Mirror
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from tests.builders import constant_profile, machine_profile, with_guesses
from tools.closed_forms import fewest_rounds
from tools.iid_trace import synthesise_trace

ONE = {Role.TARGET: (0,)}
SPLIT = {Role.TARGET: (0,), Role.DRAFT: (1,)}
RANKS = (0.6, 0.2, 0.1, 0.05)


@pytest.mark.parametrize("cost_ratio", [3.0, 12.0, 40.0])
@pytest.mark.parametrize("ranks", [(0.3, 0.2), RANKS, (0.95, 0.03)])
def test_no_simulation_has_fewer_rounds_than_its_trace_allows(ranks: tuple[float, ...], cost_ratio: float) -> None:
    trace = with_guesses(synthesise_trace(ranks, prompt_lengths=(8, 20), num_tokens=100, seed=1))
    simulator = Simulator(machine_profile(cost_ratio=cost_ratio), trace)
    options = [
        *(Option(policy=SerialChain(num_draft_tokens=n), groups=ONE) for n in (1, 4, 10)),
        *(Option(policy=SerialTree(verify_rows=n, expand_rows=2, expansions=3), groups=ONE) for n in (4, 12)),
        *(Option(policy=SwiftSpec(verify_rows=n, expand_rows=4), groups=SPLIT) for n in (4, 8, 24)),
        Option(policy=SwiftSpec(verify_rows=12, least_probability=0.1), groups=SPLIT),
        Option(policy=Mirror(num_draft_tokens=4, guesses=1), groups=SPLIT),
        *(Option(policy=Dsi(num_draft_tokens=n), groups={**SPLIT, Role.TARGET: (0, 2)}) for n in (1, 4)),
    ]
    for option in options:
        policy = option.policy
        for prompt, timeline in zip(
            trace.prompts, simulator.run(policy, degrees=option.degrees).timelines, strict=True
        ):
            least = fewest_rounds(
                prompt.ranks.tolist(), verify_rows=policy.target_rows, num_candidates=policy.num_candidates
            )
            assert len(timeline.commits) >= least


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
