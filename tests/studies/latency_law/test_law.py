"""The law of latency under load: published step times, the queue it is the mean of, and sparse targets."""

import math

import numpy as np
import pytest

from swiftspec.studies.latency_law.coverage import ExpertCoverage
from swiftspec.studies.latency_law.fitting import fit_latencies, r_squared
from swiftspec.studies.latency_law.law import LatencyLaw

# Qwen3-32B without a draft: steps of 34.05 + 0.0615 B ms, outputs of 200 tokens.
QWEN = LatencyLaw.of_steps(num_steps=200, fixed_s=0.03405, each_s=0.0000615)
RATES = (0.0, *np.linspace(5, 75, 8).tolist())


def test_published_steps_give_the_published_coefficients() -> None:
    assert QWEN.c1_s == pytest.approx(6.8, abs=0.05)
    assert QWEN.c2_s == pytest.approx(0.0123, abs=0.0001)
    assert QWEN.saturation == pytest.approx(1 / (200 * 0.0000615))


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_numbers_of_requests_are_negative_binomial_and_agree_with_littles_law(load: float) -> None:
    law = LatencyLaw.of_steps(num_steps=100, fixed_s=0.010, each_s=0.001)
    rate = load * law.saturation
    shape = 1 + 0.010 / 0.001
    probabilities = [law.batch_probability(number, rate) for number in range(600)]
    assert sum(probabilities) == pytest.approx(1)
    mean = sum(number * share for number, share in enumerate(probabilities))
    assert mean == pytest.approx(shape * load / (1 - load))
    assert law.latency_s(rate) == pytest.approx(mean / rate)


def test_latency_has_no_bound_from_the_saturation_on() -> None:
    assert QWEN.latency_s(QWEN.saturation) == math.inf
    assert QWEN.limited_latency_s(QWEN.limited_saturation(8), 8) == math.inf


def test_places_for_everyone_make_no_difference_and_one_place_is_a_queue_of_one_server() -> None:
    rate = 0.5 * QWEN.saturation
    assert QWEN.limited_latency_s(rate, 5000) == pytest.approx(QWEN.latency_s(rate), rel=1e-6)
    alone = 0.7 / QWEN.c1_s
    assert QWEN.limited_latency_s(alone, 1) == pytest.approx(QWEN.c1_s / (1 - 0.7))  # M/M/1


def test_fit_finds_the_law_that_latencies_were_computed_from() -> None:
    latencies_s = [QWEN.latency_s(rate) for rate in RATES]
    found = fit_latencies(RATES, latencies_s)
    assert (found.c1_s, found.c2_s) == pytest.approx((QWEN.c1_s, QWEN.c2_s), rel=1e-4)
    assert r_squared(found, RATES, latencies_s) == pytest.approx(1)


def test_sparse_targets_need_the_coverage_of_their_experts() -> None:
    """As published: R2 of 0.83 without the term and 0.98 with it (Qwen3-30B-A3B, 8 of 128 experts)."""
    coverage = ExpertCoverage(experts=128, active=8)
    sparse = LatencyLaw(c1_s=1.0, c2_s=0.02, coverage=coverage)
    latencies_s = [sparse.latency_s(rate) for rate in np.linspace(0, 4, 9)]
    rates = np.linspace(0, 4, 9).tolist()
    with_term, without = fit_latencies(rates, latencies_s, coverage=coverage), fit_latencies(rates, latencies_s)
    assert r_squared(with_term, rates, latencies_s) > 0.999
    assert r_squared(without, rates, latencies_s) < 0.95
    assert with_term.c1_s == pytest.approx(1.0, rel=1e-3)


def test_coverage_grows_from_the_active_share_to_all_experts() -> None:
    coverage = ExpertCoverage(experts=128, active=8)
    assert coverage.share(1) == pytest.approx(8 / 128)
    assert coverage.share(10_000) == pytest.approx(1)
    assert ExpertCoverage(experts=4, active=4).share(1) == 1


@pytest.mark.parametrize(
    ("rates", "latencies_s", "message"),
    [
        ((0.0, 1.0, 1.0), (1.0, 2.0, 2.0), "rates has 2 different ones; expected at least 3"),
        ((0.0, 1.0, 2.0), (1.0, 0.0, 2.0), "latencies_s has 0.0; expected positive"),
        ((0.0, 1.0, 2.0), (1.0, 2.0), "latencies_s has 2 values; expected 3"),
    ],
)
def test_what_cannot_be_fitted_is_named(rates: tuple[float, ...], latencies_s: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_latencies(rates, latencies_s)


def test_numbers_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="c1_s is 0; expected a positive number"):
        LatencyLaw(c1_s=0, c2_s=0.1)
    with pytest.raises(ValueError, match="active is 9; expected 1 to 8"):
        ExpertCoverage(experts=8, active=9)
