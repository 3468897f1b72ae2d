"""Published policies against closed forms: constant latencies, independent positions, messages that take no time."""

import pytest

from swiftspec.acceptance import AcceptanceTrace
from swiftspec.policies import Policy
from swiftspec.policies.amusd import Amusd
from swiftspec.policies.effects import Role
from swiftspec.policies.pearl import Pearl
from swiftspec.policies.sequoia import SequoiaTree
from swiftspec.policies.serial import SerialChain
from swiftspec.policies.ssd import Ssd
from swiftspec.simulator.closed_forms import (
    amusd_speedup,
    best_chain,
    best_tree_tokens,
    chain_tokens,
    pearl_speedup,
    pearl_tokens,
    serial_round_s,
    serial_speedup,
)
from swiftspec.simulator.driver import simulate
from swiftspec.simulator.oracle import synthesise_trace
from swiftspec.timeline import Metrics, measure
from tests.simulator.builders import constant_profile

# (acceptance, cost ratio): speed-up of the best serial chain and its length, of PEARL with K = c, of AMUSD with m = 2.
TABLE = {
    (0.6, 3): (1.200, 1, 1.416, 1.287),
    (0.8, 3): (1.476, 3, 1.894, 1.841),
    (0.9, 5): (2.373, 7, 3.127, 3.144),
    (0.6, 10): (1.674, 3, 1.559, 1.764),
    (0.8, 10): (2.470, 6, 2.637, 2.819),
    (0.95, 20): (6.600, 21, 8.062, 8.209),
}


@pytest.mark.parametrize(("case", "row"), TABLE.items())
def test_closed_forms_are_those_of_the_table(case: tuple[float, int], row: tuple[float, int, float, float]) -> None:
    acceptance, cost_ratio = case
    length = best_chain(acceptance, cost_ratio=cost_ratio)
    assert length == row[1]
    assert serial_speedup(acceptance, length, cost_ratio=cost_ratio) == pytest.approx(row[0], abs=6e-4)
    assert pearl_speedup(acceptance, cost_ratio, cost_ratio=cost_ratio) == pytest.approx(row[2], abs=6e-4)
    assert amusd_speedup(acceptance, 2, cost_ratio=cost_ratio) == pytest.approx(row[3], abs=6e-4)


@pytest.mark.parametrize(
    ("acceptance", "window", "tokens"),
    [(0.8, 4, 2.123), (0.9, 8, 3.876), (0.95, 8, 5.232), (0.7, 4, 1.735), (0.5, 4, 1.304)],
)
def test_tokens_of_a_pearl_round_are_those_published(acceptance: float, window: int, tokens: float) -> None:
    assert pearl_tokens(acceptance, window) == pytest.approx(tokens, abs=6e-4)


def simulated(policy: Policy, acceptance: float, *, cost_ratio: float, seed: int = 1) -> Metrics:
    """40 000 tokens behind a prefill that takes next to no time; a draft forward takes a second."""
    trace = synthesise_trace((acceptance,), prompt_lengths=(4,) * 10, num_tokens=4000, seed=seed)
    return measured(policy, trace, cost_ratio=cost_ratio)


def measured(policy: Policy, trace: AcceptanceTrace, *, cost_ratio: float) -> Metrics:
    profile = constant_profile(expand_s=1.0, verify_s=cost_ratio, prefill_s=1e-3)
    return measure(simulate(policy, degrees=dict.fromkeys(Role, 1), profile=profile, trace=trace))


@pytest.mark.parametrize(("acceptance", "cost_ratio"), [(0.6, 3), (0.8, 5), (0.9, 10)])
def test_simulated_pearl_follows_its_closed_form(acceptance: float, cost_ratio: int) -> None:
    metrics = simulated(Pearl(num_draft_tokens=cost_ratio), acceptance, cost_ratio=cost_ratio)
    assert metrics.mean_round_s == pytest.approx(cost_ratio, rel=1e-3)
    assert metrics.figures.tokens_per_round == pytest.approx(pearl_tokens(acceptance, cost_ratio), rel=0.03)
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(pearl_speedup(acceptance, cost_ratio, cost_ratio=cost_ratio), rel=0.03)


@pytest.mark.parametrize(("acceptance", "cost_ratio"), [(0.6, 3), (0.9, 5), (0.8, 10)])
def test_simulated_amusd_follows_its_closed_form(acceptance: float, cost_ratio: int) -> None:
    # A verification ends a moment before a draft step does, so that the verdict is noticed then, as the closed form has
    # it; and the target waits for that step's token.
    policy = Amusd(lookahead=cost_ratio - 1, verify_rows=32)
    metrics = simulated(policy, acceptance, cost_ratio=cost_ratio - 1e-6)
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(amusd_speedup(acceptance, cost_ratio - 1, cost_ratio=cost_ratio), rel=0.03)


def test_amusd_out_of_step_is_a_little_slower_than_its_closed_form() -> None:
    metrics = simulated(Amusd(lookahead=2, verify_rows=32), 0.8, cost_ratio=10 - 1e-6)
    assert 0.94 < metrics.figures.tokens_per_s * 10 / amusd_speedup(0.8, 2, cost_ratio=10) < 1.01


@pytest.mark.parametrize(("length", "acceptance", "cost_ratio"), [(3, 0.6, 10), (6, 0.8, 10)])
def test_simulated_serial_chain_follows_its_closed_form(length: int, acceptance: float, cost_ratio: int) -> None:
    metrics = simulated(SerialChain(num_draft_tokens=length), acceptance, cost_ratio=cost_ratio)
    round_s = serial_round_s(expansions=length, expand_s=1.0, verify_s=cost_ratio)
    assert metrics.figures.round_s.median == metrics.figures.round_s.p95 == round_s
    speedup = metrics.figures.tokens_per_s * cost_ratio
    assert speedup == pytest.approx(serial_speedup(acceptance, length, cost_ratio=cost_ratio), rel=0.03)


def test_simulated_ssd_hides_its_drafting_where_an_outcome_is_prepared() -> None:
    """The paper's Theorem 7 with jit fallback, at the hit rate that the simulation has."""
    ranks, length, cost_ratio = (0.8, 0.1, 0.04), 4, 10.0
    trace = synthesise_trace(ranks, prompt_lengths=(4,) * 10, num_tokens=3000, seed=2)
    metrics = measured(Ssd(num_draft_tokens=length, branches=12, acceptance=0.8), trace, cost_ratio=cost_ratio)
    assert metrics.figures.tokens_per_round == pytest.approx(chain_tokens(0.8, length), rel=0.03)
    assert metrics.hit_fraction is not None
    expected_s = cost_ratio + (1 - metrics.hit_fraction) * length
    assert metrics.mean_round_s == pytest.approx(expected_s, rel=0.01)
    assert 0.3 < metrics.hit_fraction < 0.9


def test_simulated_sequoia_is_the_best_static_tree() -> None:
    ranks = (0.6, 0.2, 0.1)
    trace = synthesise_trace(ranks, prompt_lengths=(4,) * 10, num_tokens=3000, seed=2)
    metrics = measured(SequoiaTree(verify_rows=8, depth=3, rank_acceptance=ranks), trace, cost_ratio=10.0)
    assert metrics.figures.tokens_per_round == pytest.approx(best_tree_tokens(ranks, 8, max_depth=3), rel=0.03)
    assert metrics.figures.round_s.median == 13.0
