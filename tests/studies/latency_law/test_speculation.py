"""Speculation in the latency model: tokens per round, where it pays, and the best draft length by load.

Published measurements: tomasruizt/vllm-scripts, logs of vLLM of January 2026 (InstructCoder, greedy), fitted here.
"""

import pytest

from swiftspec.studies.latency_law.law import LatencyLaw
from swiftspec.studies.latency_law.speculation import Comparison, Cost, RequestCosts, best_length, tokens_per_round

# An 8B head drafting for 70B, in the spirit of the published sweeps: drafting is cheap alone, and rows are not free.
COSTS = RequestCosts(prefill=Cost(0.05, 0.02), verify=Cost(0.030, 0.0004), draft=Cost(0.0012, 0.00008))
OUTPUT = 256


def law(length: int, acceptance: float, *, row_s: float = 0.0002) -> LatencyLaw:
    """Of requests with so many draft tokens; every drafted row costs a further request half a plain row."""
    verify = COSTS.verify.plus(Cost(0.0, row_s * length))
    return RequestCosts(prefill=COSTS.prefill, verify=verify, draft=COSTS.draft).law(
        output_tokens=OUTPUT, tokens_per_round=tokens_per_round(acceptance, length), num_draft_tokens=length
    )


@pytest.mark.parametrize(("acceptance", "length", "tokens"), [(0.8, 4, 3.3616), (0.7, 3, 2.533), (0.9, 6, 5.2170)])
def test_tokens_of_a_round(acceptance: float, length: int, tokens: float) -> None:
    assert tokens_per_round(acceptance, length) == pytest.approx(tokens, abs=5e-5)
    rates = [acceptance**number for number in range(1, length + 1)]
    assert tokens_per_round(rates) == pytest.approx(tokens, abs=5e-5)


def test_parts_add_up() -> None:
    total = COSTS.total(output_tokens=OUTPUT, tokens_per_round=2.0, num_draft_tokens=3)
    assert total.c1_s == pytest.approx(0.05 + 128 * (0.030 + 3 * 0.0012))
    assert total.c2_s == pytest.approx(0.02 + 128 * (0.0004 + 3 * 0.00008))


@pytest.mark.parametrize("length", [2, 3, 5])
def test_the_speed_up_is_the_published_line_and_is_1_at_the_break_even(length: int) -> None:
    compared = Comparison(plain=law(0, 0.6), speculative=law(length, 0.6))
    c1_ratio, c2_ratio = compared.c1_ratio, compared.c2_ratio
    assert c1_ratio < 1 < c2_ratio
    for load in (0.1, 0.5):
        rate = load * compared.plain.saturation
        line = (1 + (1 - c2_ratio) * load / (1 - load)) / c1_ratio
        assert compared.speed_up(rate) == pytest.approx(line)
    assert compared.break_even_load == pytest.approx((1 - c1_ratio) / (c2_ratio - c1_ratio))
    assert compared.break_even_rate is not None
    assert compared.speed_up(compared.break_even_rate) == pytest.approx(1)


def test_the_gain_grows_with_load_only_where_nearly_everything_is_accepted() -> None:
    def c2_ratio(acceptance: float) -> float:
        return Comparison(plain=law(0, acceptance), speculative=law(4, acceptance)).c2_ratio

    assert c2_ratio(0.8) > 1
    assert c2_ratio(0.95) < 1


def test_long_drafts_are_best_alone_and_short_ones_near_saturation() -> None:
    laws = {length: law(length, 0.85) for length in range(11)}
    assert min(laws, key=lambda length: laws[length].c1_s) in range(7, 11)
    most = max(each.saturation for each in laws.values())
    chosen = [best_length(laws, share * most) for share in (0.0, 0.5, 0.9, 0.99)]
    assert chosen == sorted(chosen, reverse=True)
    assert 0 <= chosen[-1] <= 3


@pytest.mark.parametrize(("clients", "published"), [(1, 5), (8, 5), (32, 3), (64, 3), (128, 2)])
def test_published_best_lengths_are_within_1_percent_of_the_best(clients: int, published: int) -> None:
    """Of Qwen3-32B with a 1.7B draft on an H100; steps of 35.78 + 2.922 k + 0.0678 B (k + 1) ms are fitted to it."""
    acceptance = (0.710, 0.489, 0.355, 0.259, 0.193, 0.148)  # of the first, second .. draft token

    def tokens_per_s(length: int) -> float:
        row_s = 0.0678e-3 * (length + 1)
        costs = RequestCosts(prefill=Cost(0, 0), verify=Cost(0.03578 + row_s, row_s), draft=Cost(0.002922, 0))
        tokens = tokens_per_round(acceptance, length)
        return 200 / costs.law(output_tokens=200, tokens_per_round=tokens, num_draft_tokens=length).shared_s(
            clients - 1
        )

    found = {length: tokens_per_s(length) for length in range(1, 7)}
    best = max(found, key=found.__getitem__)
    assert abs(best - published) <= 1
    assert found[published] > 0.99 * found[best]


def test_no_length_serves_more_than_the_highest_saturation() -> None:
    laws = {0: law(0, 0.8)}
    with pytest.raises(ValueError, match="expected less than the highest saturation"):
        best_length(laws, 2 * laws[0].saturation)


@pytest.mark.parametrize(
    ("acceptance", "length", "message"),
    [
        (1.2, 3, "acceptance is 1.2; expected a probability"),
        (0.8, None, "num_draft_tokens is missing"),
        ([0.8, 0.5], 3, "acceptance has 2 rates; expected 3"),
    ],
)
def test_impossible_acceptance_is_named(acceptance: float | list[float], length: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokens_per_round(acceptance, length)
