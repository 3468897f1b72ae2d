"""Acceptance of heads by name, as plans use it."""

import pytest

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.lengths import unconditional_rates
from swiftspec.acceptance.records import published_records
from swiftspec.acceptance.usual import given_rates, published_rates
from swiftspec.timing.latency import Provenance


def length(rates: tuple[float, ...], num_draft_tokens: int) -> float:
    return 1 + sum(unconditional_rates(rates[:num_draft_tokens]))


def test_a_published_head_has_the_published_length() -> None:
    found = published_rates("qwen3-14b", "dspark", "GSM8K")
    (record,) = (
        one for one in published_records() if (one.target, one.drafter, one.dataset) == ("qwen3-14b", "DSpark", "GSM8K")
    )
    assert found.provenance is Provenance.PUBLISHED
    assert length(found.rates, 7) == pytest.approx(record.values[0], abs=0.01)
    assert "DSpark" in found.basis
    assert "second and later candidates, which only trees use, are assumed" in found.basis


def test_without_a_data_set_it_is_the_mean_of_all() -> None:
    one = published_rates("qwen3-14b", "eagle3")
    single = [published_rates("qwen3-14b", "eagle3", name).rates[0] for name in ("GSM8K", "MATH", "Alpaca")]
    assert min(single) < one.rates[0] < max(single)


def test_a_head_of_another_target_stands_in_and_says_so() -> None:
    found = published_rates("llama-3.3-70b", "dflash")
    assert found.provenance is Provenance.ASSUMED
    assert "no acceptance of dflash with llama-3.3-70b is published; the mean of" in found.basis


def test_a_data_set_without_figures_has_those_of_its_class() -> None:
    found = published_rates("qwen3-14b", "dspark", "MATH-500")
    assert found.provenance is Provenance.PUBLISHED
    assert "published on AIME25, GSM8K, MATH: " in found.basis


def test_a_text_that_nobody_ran_with_the_target_has_other_targets_figures() -> None:
    found = published_rates("qwen3-14b", "eagle3", "CNN/DailyMail")
    assert found.provenance is Provenance.ASSUMED
    assert "no acceptance of eagle3 with qwen3-14b is published on CNN/DailyMail; the mean of" in found.basis
    assert "drafters of its kind on summaries" in found.basis


def test_what_is_not_published_is_asked_for() -> None:
    with pytest.raises(ValueError, match="acceptance of medusa is not published anywhere: give it with --acceptance"):
        published_rates("qwen3-14b", "medusa")


def test_given_shares_by_position_are_taken_as_they_are() -> None:
    found = given_rates(GivenAcceptance.parse("0.8,0.6,0.54"))
    assert found.rates == pytest.approx((0.8, 0.75, 0.9))


def test_a_given_mean_share_is_the_same_at_every_position() -> None:
    found = given_rates(GivenAcceptance.parse("0.5@4"))
    assert found.rates == pytest.approx([found.rates[0]] * 4)
    assert sum(unconditional_rates(found.rates)) / 4 == pytest.approx(0.5)
