"""Length of chains chosen by acceptance at every position, not by one rate."""

from functools import cache

import pytest

from swiftspec.acceptance.importing import from_trace
from swiftspec.acceptance.lengths import unconditional_rates
from swiftspec.acceptance.records import AcceptanceRecord, Form
from swiftspec.acceptance.synthesis import synthesise_positions
from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.policies import DraftKind
from swiftspec.policies.effects import Role
from swiftspec.policies.trees.heads import HeadChain
from swiftspec.simulator.driver import simulate
from tests.builders import constant_profile

MODEL = ModelRef(model="m", dtype="float32")
# Conditional rates. Chains of 8 have the same length with both, 3.73 tokens a round: servers log the same mean.
DECAYING = (0.95, 0.9, 0.75, 0.4, 0.1, 0.1, 0.1, 0.1)
RISING = (0.58, 0.72, 0.82, 0.9, 0.95, 0.95, 0.95, 0.95)
COST = 0.05  # of a draft forward, in verifications
LENGTHS = (2, 4, 8)


@cache
def trace_of(rates: tuple[float, ...]) -> AcceptanceTrace:
    return synthesise_positions(
        rates, kind=DraftKind.HEAD, num_prompts=24, prompt_length=8, num_tokens=192, seed=0, target=MODEL, draft=MODEL
    )


@cache
def speed(rates: tuple[float, ...], length: int) -> float:
    profile = constant_profile(expand_s=COST, verify_s=1.0, prefill_s=1e-6)
    policy = HeadChain(num_draft_tokens=length)
    timelines = simulate(policy, degrees={Role.TARGET: 1}, profile=profile, trace=trace_of(rates))
    return measure(timelines).figures.tokens_per_s


def expected(rates: tuple[float, ...], length: int) -> float:
    """Tokens of a round over its duration."""
    return (1 + sum(unconditional_rates(rates[:length]))) / (1 + COST * length)


def mean_only(rates: tuple[float, ...]) -> AcceptanceRecord:
    """What is left of rates by position in a server's log that has only the mean length of chains of 8."""
    counted = from_trace(trace_of(rates), num_draft_tokens=8)
    return AcceptanceRecord(
        target="t",
        drafter="d",
        kind=DraftKind.HEAD,
        quantity=Form.LENGTH,
        bonus=True,
        num_draft_tokens=8,
        values=(1 + sum(counted.values),),
        source="simulated",
    )


@pytest.mark.parametrize("rates", [DECAYING, RISING])
@pytest.mark.parametrize("length", LENGTHS)
def test_simulated_speed_is_that_of_the_rates(rates: tuple[float, ...], length: int) -> None:
    assert speed(rates, length) == pytest.approx(expected(rates, length), rel=0.05)


def test_drafters_of_one_mean_have_different_best_lengths() -> None:
    best = [max(LENGTHS, key=lambda length: speed(rates, length)) for rates in (DECAYING, RISING)]
    assert best == [4, 8]
    means = [mean_only(rates).conditional for rates in (DECAYING, RISING)]
    assert means[0] == pytest.approx(means[1], abs=0.03)
    by_mean = [max(LENGTHS, key=lambda length: expected(rates, length)) for rates in means]
    assert by_mean[0] == by_mean[1]
