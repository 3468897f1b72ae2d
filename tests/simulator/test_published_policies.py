"""Published policies against closed forms: constant latencies, independent positions, messages that take no time.

The closed forms are taken at the share of right guesses that the trace happens to have, which is most of the noise: of
6000 tokens' speed-up, a standard deviation of 0.5 % is left at most, instead of 2.2 %. Hence 1 %: two of them, of
traces that are always the same, and the last verification of each prompt, which brings more than is wanted.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.search.estimates import best_tree_tokens
from swiftspec.policies import Policy
from swiftspec.policies.asynchronous.amusd import Amusd
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.mirror import Mirror
from swiftspec.policies.asynchronous.pearl import Pearl
from swiftspec.policies.asynchronous.ssd import Ssd
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.policies.trees.sequoia import SequoiaTree
from swiftspec.simulator.driver import simulate
from swiftspec.timing.timeline import Phase
from tests.builders import constant_profile, with_guesses
from tools.closed_forms import (
    amusd_speedup,
    best_chain,
    chain_tokens,
    dsi_speedup,
    mirror_round_s,
    pearl_speedup,
    pearl_tokens,
    serial_speedup,
)
from tools.iid_trace import synthesise_trace

# (acceptance, cost ratio): speed-up of the best serial chain and its length, of PEARL with K = c, of AMUSD with m = 2
# and with m = 1, of DSI with k = 1 and blocks that answer for themselves alone.
TABLE = {
    (0.6, 3): (1.200, 1, 1.416, 1.287, 1.395, 1.471),
    (0.8, 3): (1.476, 3, 1.894, 1.841, 1.890, 1.923),
    (0.9, 3): (1.757, 5, 2.314, 2.295, 2.314, 2.326),
    (0.95, 3): (2.019, 7, 2.611, 2.605, 2.611, 2.614),
    (0.6, 5): (1.400, 2, 1.515, 1.530, 1.572, 1.761),
    (0.8, 5): (1.868, 4, 2.283, 2.313, 2.323, 2.551),
    (0.9, 5): (2.373, 7, 3.127, 3.144, 3.147, 3.356),
    (0.95, 5): (2.875, 10, 3.847, 3.854, 3.854, 4.008),
    (0.6, 10): (1.674, 3, 1.559, 1.764, 1.710, 2.066),
    (0.8, 10): (2.470, 6, 2.637, 2.819, 2.752, 3.378),
    (0.9, 10): (3.431, 10, 4.198, 4.312, 4.267, 5.025),
    (0.95, 10): (4.479, 15, 5.939, 5.994, 5.972, 6.678),
    (0.6, 20): (1.921, 4, 1.562, 1.900, 1.773, 2.262),
    (0.8, 20): (3.092, 8, 2.763, 3.090, 2.946, 4.032),
    (0.9, 20): (4.674, 13, 4.939, 5.182, 5.071, 6.689),
    (0.95, 20): (6.600, 21, 8.062, 8.209, 8.141, 10.013),
}


@pytest.mark.parametrize(("case", "row"), TABLE.items())
def test_closed_forms_are_those_of_the_table(
    case: tuple[float, int], row: tuple[float, int, float, float, float, float]
) -> None:
    acceptance, cost_ratio = case
    serial, length, *others = row
    assert best_chain(acceptance, cost_ratio=cost_ratio) == length
    assert serial_speedup(acceptance, length, cost_ratio=cost_ratio) == pytest.approx(serial, abs=6e-4)
    found = [
        pearl_speedup(acceptance, cost_ratio, cost_ratio=cost_ratio),
        amusd_speedup(acceptance, 2, cost_ratio=cost_ratio),
        amusd_speedup(acceptance, 1, cost_ratio=cost_ratio),
        dsi_speedup(acceptance, 1, cost_ratio=cost_ratio, last_row=False),
    ]
    assert found == pytest.approx(others, abs=6e-4)


@pytest.mark.parametrize(
    ("acceptance", "cost_ratio", "lookahead", "speedup"),
    [
        (0.6, 4.5, 2, 1.404),
        (0.8, 4.5, 1, 2.149),
        (0.9, 4.5, 2, 2.873),
        (0.6, 7.3, 1, 1.574),
        (0.8, 7.3, 2, 2.508),
        (0.9, 7.3, 1, 3.649),
        (0.6, 15.6, 2, 1.818),
        (0.8, 15.6, 1, 2.828),
        (0.9, 15.6, 2, 4.804),
    ],
)
def test_amusd_between_whole_cost_ratios(acceptance: float, cost_ratio: float, lookahead: int, speedup: float) -> None:
    """Against an independent simulation of 3 million tokens each."""
    assert amusd_speedup(acceptance, lookahead, cost_ratio=cost_ratio) == pytest.approx(speedup, rel=1e-3)


@pytest.mark.parametrize(("acceptance", "lookahead", "cost_ratio"), [(0.9, 1, 5), (0.9, 2, 5), (0.8, 2, 10)])
def test_amusd_whose_verifications_end_just_before_a_draft_step(
    acceptance: float, lookahead: int, cost_ratio: int
) -> None:
    """Up to 4 % slower: the second verification after an error has c - 2 tokens instead of c - 1, others as many."""
    ideal = 1 / amusd_speedup(acceptance, lookahead, cost_ratio=cost_ratio) / (1 - acceptance)
    missed = acceptance ** (lookahead + cost_ratio) * (1 - acceptance) / (1 - acceptance**cost_ratio)
    speedup = amusd_speedup(acceptance, lookahead, cost_ratio=cost_ratio - 1e-9)
    assert 1 / speedup / (1 - acceptance) == pytest.approx(ideal + missed)


@pytest.mark.parametrize(("acceptance", "block"), [(0.8, 1), (0.9, 2), (0.8, 3)])
def test_blocks_of_dsi_between_two_errors(acceptance: float, block: int) -> None:
    """Difference between the two accountings, counted at the place of the first error."""
    place = np.random.default_rng(1).geometric(1 - acceptance, 400_000)
    for last_row, blocks in (
        (True, np.ceil((place - 1) / block)),
        (False, (place - 1) // block + (place > 1)),
    ):
        speedup = dsi_speedup(acceptance, block, cost_ratio=10, last_row=last_row)
        assert place.sum() * 10 / (10 + block * blocks).sum() == pytest.approx(speedup, rel=5e-3)


@pytest.mark.parametrize(("verify_s", "expansions", "speedup"), [(10.0, 7, 3.276), (20.0, 7, 4.020), (10.0, 4, 4.001)])
def test_round_of_mirror_sd(verify_s: float, expansions: int, speedup: float) -> None:
    half_s = verify_s / 2
    round_s = mirror_round_s(expansions=expansions, expand_s=1.0, exit_s=half_s, finish_s=half_s, hit_fraction=0.9)
    assert chain_tokens(0.8, 7) * verify_s / round_s == pytest.approx(speedup, abs=6e-4)


@pytest.mark.parametrize(
    ("acceptance", "window", "tokens"),
    [(0.8, 4, 2.123), (0.9, 8, 3.876), (0.95, 8, 5.232), (0.7, 4, 1.735), (0.5, 4, 1.304)],
)
def test_tokens_of_a_pearl_round_are_those_published(acceptance: float, window: int, tokens: float) -> None:
    assert pearl_tokens(acceptance, window) == pytest.approx(tokens, abs=6e-4)


def simulated(
    policy: Policy,
    acceptance: float,
    *,
    verify_s: float,
    host_s: Mapping[Phase, float] | None = None,
) -> tuple[Metrics, float]:
    """Of 6000 tokens, and the share of right guesses among them; a draft forward takes a second."""
    trace = synthesise_trace((acceptance,), prompt_lengths=(4,) * 3, num_tokens=2000, seed=1)
    right = np.concatenate([prompt.ranks for prompt in trace.prompts]) == 0
    profile = constant_profile(expand_s=1.0, verify_s=verify_s, prefill_s=1e-3, host_s=host_s)
    return measured(policy, trace, profile), float(right.mean())


def measured(policy: Policy, trace: AcceptanceTrace, profile: Profile) -> Metrics:
    """On a device for the draft and one for each target group."""
    degrees = {Role.TARGET: policy.target_groups, Role.DRAFT: 1}
    return measure(simulate(policy, degrees=degrees, profile=profile, trace=trace))


@pytest.mark.parametrize(("acceptance", "cost_ratio"), [(0.6, 3), (0.8, 5), (0.9, 10)])
def test_simulated_pearl_follows_its_closed_form(acceptance: float, cost_ratio: int) -> None:
    metrics, right = simulated(Pearl(num_draft_tokens=cost_ratio), acceptance, verify_s=cost_ratio)
    assert metrics.mean_round_s == pytest.approx(cost_ratio, rel=1e-3)
    assert metrics.figures.tokens_per_round == pytest.approx(pearl_tokens(right, cost_ratio), rel=0.01)
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(pearl_speedup(right, cost_ratio, cost_ratio=cost_ratio), rel=0.01)


# The target waits for less than what is drafted during a verification, and for just that.
@pytest.mark.parametrize(
    ("acceptance", "cost_ratio", "lookahead"), [(0.9, 5, 1), (0.9, 5, 2), (0.8, 10, 2), (0.6, 3, 2)]
)
def test_simulated_amusd_in_step_follows_its_closed_form(acceptance: float, cost_ratio: int, lookahead: int) -> None:
    # In the ideal both roles see what the other one's step brings that ends at the same instant. So the verdict leaves
    # a moment before the draft's step ends, and the next verification begins a moment after.
    moment_s = 1e-3
    metrics, right = simulated(
        Amusd(lookahead=lookahead, verify_rows=32),
        acceptance,
        verify_s=cost_ratio - moment_s,
        host_s={Phase.COMMIT: moment_s + 1e-9},
    )
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(amusd_speedup(right, lookahead, cost_ratio=cost_ratio), rel=0.01)


# Also where it waits for more than that.
@pytest.mark.parametrize(
    ("acceptance", "cost_ratio", "lookahead"), [(0.9, 5 - 1e-6, 2), (0.9, 7.3, 1), (0.8, 4.3, 2), (0.8, 2.6, 3)]
)
def test_simulated_amusd_out_of_step_follows_its_closed_form(
    acceptance: float, cost_ratio: float, lookahead: int
) -> None:
    metrics, right = simulated(Amusd(lookahead=lookahead, verify_rows=32), acceptance, verify_s=cost_ratio)
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(amusd_speedup(right, lookahead, cost_ratio=cost_ratio), rel=0.01)


@pytest.mark.parametrize(("acceptance", "cost_ratio", "block"), [(0.6, 3, 1), (0.8, 5, 1), (0.9, 10, 2), (0.8, 7, 3)])
def test_simulated_dsi_follows_its_closed_form(acceptance: float, cost_ratio: int, block: int) -> None:
    """As if target groups were without number, though a rejected block occupies one to its end."""
    groups = -(-cost_ratio // block) + 1
    policy = Dsi(num_draft_tokens=block, target_groups=groups, verify_rows=64)
    # A verification ends a moment before a draft step does, so that its answers are noticed then.
    metrics, right = simulated(policy, acceptance, verify_s=cost_ratio - 1e-6)
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(dsi_speedup(right, block, cost_ratio=cost_ratio), rel=0.01)
    assert speedup > 1.02 * dsi_speedup(right, block, cost_ratio=cost_ratio, last_row=False)


@pytest.mark.parametrize(("length", "acceptance", "cost_ratio"), [(3, 0.6, 10), (6, 0.8, 10)])
def test_simulated_serial_chain_follows_its_closed_form(length: int, acceptance: float, cost_ratio: int) -> None:
    metrics, right = simulated(SerialChain(num_draft_tokens=length), acceptance, verify_s=cost_ratio)
    assert metrics.figures.round_s.median == metrics.figures.round_s.p95 == length * 1.0 + cost_ratio
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(serial_speedup(right, length, cost_ratio=cost_ratio), rel=0.01)


# The draft's rollout is shorter than the target's other half, and longer.
@pytest.mark.parametrize(("verify_s", "exit_share", "length"), [(10.0, 0.5, 4), (8.0, 0.75, 4)])
def test_simulated_mirror_follows_its_closed_form(verify_s: float, exit_share: float, length: int) -> None:
    """The paper's latency model, at the hit rate that the simulation has and at that of independent positions.

    The paper's J is K, since a draft forward makes one token; the forward over the chain ends before the first half.
    """
    ranks, guesses = (0.7, 0.15, 0.05), 2
    trace = with_guesses(synthesise_trace(ranks, prompt_lengths=(4,) * 5, num_tokens=2000, seed=2))
    profile = constant_profile(expand_s=1.0, verify_s=verify_s, prefill_s=1e-3, exit_share=exit_share)
    metrics = measured(Mirror(num_draft_tokens=length, guesses=guesses), trace, profile)
    assert metrics.hit_fraction is not None
    expected_s = mirror_round_s(
        expansions=length,
        expand_s=1.0,
        exit_s=verify_s * exit_share,
        finish_s=verify_s * (1 - exit_share),
        hit_fraction=metrics.hit_fraction,
    )
    assert metrics.mean_round_s == pytest.approx(expected_s, rel=2e-3)
    # A rejected token's place is guessed without it, and so from the second rank on; the place behind the chain fully.
    right = np.concatenate([prompt.ranks for prompt in trace.prompts])
    shares = np.array([np.mean(right == rank) for rank in range(guesses + 1)])
    passes = shares[0] ** length
    hits = (1 - passes) * shares[1:].sum() / (1 - shares[0]) + passes * shares[:-1].sum()
    assert metrics.hit_fraction == pytest.approx(hits, rel=0.03)
    assert metrics.figures.tokens_per_round == pytest.approx(chain_tokens(shares[0], length), rel=0.01)


def test_simulated_ssd_hides_its_drafting_where_an_outcome_is_prepared() -> None:
    """The paper's Theorem 7 with jit fallback, at the hit rate that the simulation has."""
    ranks, length, cost_ratio = (0.8, 0.1, 0.04), 4, 10.0
    trace = synthesise_trace(ranks, prompt_lengths=(4,) * 3, num_tokens=2000, seed=2)
    profile = constant_profile(expand_s=1.0, verify_s=cost_ratio, prefill_s=1e-3)
    metrics = measured(Ssd(num_draft_tokens=length, branches=12, acceptance=0.8), trace, profile)
    assert metrics.figures.tokens_per_round == pytest.approx(chain_tokens(0.8, length), rel=0.03)
    assert metrics.hit_fraction is not None
    expected_s = cost_ratio + (1 - metrics.hit_fraction) * length
    assert metrics.mean_round_s == pytest.approx(expected_s, rel=0.01)
    assert 0.3 < metrics.hit_fraction < 0.9


def test_simulated_sequoia_is_the_best_static_tree() -> None:
    ranks = (0.6, 0.2, 0.1)
    trace = synthesise_trace(ranks, prompt_lengths=(4,) * 3, num_tokens=2000, seed=2)
    profile = constant_profile(expand_s=1.0, verify_s=10.0, prefill_s=1e-3)
    metrics = measured(SequoiaTree(verify_rows=8, depth=3, rank_acceptance=ranks), trace, profile)
    assert metrics.figures.tokens_per_round == pytest.approx(best_tree_tokens(ranks, 8, max_depth=3), rel=0.03)
    assert metrics.figures.round_s.median == 13.0
