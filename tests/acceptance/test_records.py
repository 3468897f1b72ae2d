"""Records of acceptance by position: conversions by hand, and the published ones."""

from typing import Any

import pytest
from pydantic import ValidationError

from swiftspec.acceptance.lengths import conditional_rates, unconditional_rates
from swiftspec.acceptance.records import AcceptanceRecord, AcceptanceRecords, Form, published_records
from swiftspec.files.document import Origin
from swiftspec.policies import DraftKind


def record(quantity: Form, *values: float, **changes: Any) -> AcceptanceRecord:
    facts: dict[str, Any] = {
        "target": "t",
        "drafter": "d",
        "kind": DraftKind.HEAD,
        "quantity": quantity,
        "bonus": quantity is not Form.RATES,
        "num_draft_tokens": len(values),
        "values": values,
        "source": "by hand",
    }
    return AcceptanceRecord(**facts | changes)


def test_rates_are_converted_both_ways() -> None:
    assert conditional_rates((0.8, 0.4, 0.3)) == pytest.approx((0.8, 0.5, 0.75))
    assert unconditional_rates((0.8, 0.5, 0.75)) == pytest.approx((0.8, 0.4, 0.3))
    assert conditional_rates((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)


def test_differences_of_lengths_are_survival() -> None:
    found = record(Form.LENGTHS, 1.8, 2.4, 2.7)
    assert found.rates == pytest.approx((0.8, 0.6, 0.3))
    assert found.conditional == pytest.approx((0.8, 0.75, 0.5))
    assert [found.length(number) for number in range(4)] == pytest.approx([1.0, 1.8, 2.4, 2.7])
    assert found.basis == "differences of mean lengths of chains of 1 to 3 tokens, the bonus token counted"


def test_lengths_without_the_bonus_token_are_one_longer() -> None:
    assert record(Form.LENGTHS, 0.8, 1.4, 1.7, bonus=False).length(3) == pytest.approx(2.7)
    assert record(Form.LENGTH, 1.0, bonus=False, num_draft_tokens=2).length(2) == pytest.approx(2.0)


def test_rates_that_rise_are_pooled_and_none_is_negative() -> None:
    # 0.8, 0.2, 0.4: the last two are pooled. Falling lengths would be a negative rate.
    assert record(Form.LENGTHS, 1.8, 2.0, 2.4).rates == pytest.approx((0.8, 0.3, 0.3))
    falling = record(Form.LENGTHS, 1.8, 2.0, 1.9)
    assert falling.rates == pytest.approx((0.8, 0.2, 0.0))
    assert falling.basis.endswith("smoothed so that none rises, by at most 0.10")


def test_a_mean_alone_is_one_conditional_rate() -> None:
    # r + r^2 = 0.75 for r = 0.5
    found = record(Form.LENGTH, 1.75, num_draft_tokens=2)
    assert found.conditional == pytest.approx((0.5, 0.5))
    assert found.length(1) == pytest.approx(1.5)
    assert "assumed: the same conditional rate at every position" in found.basis
    assert record(Form.LENGTH, 3.0, num_draft_tokens=2).rates == (1.0, 1.0)
    assert record(Form.LENGTH, 1.0, num_draft_tokens=2).rates == pytest.approx((0.0, 0.0))


@pytest.mark.parametrize(
    ("quantity", "values", "changes", "sentence"),
    [
        (Form.RATES, (0.5, 1.2), {}, "values has 1.2; expected 0 to 1 for chains of 2"),
        (Form.LENGTHS, (1.5, 3.2), {}, "values has 3.2; expected 1 to 3 for chains of 2"),
        (Form.LENGTHS, (0.5,), {}, "values has 0.5; expected 1 to 2 for chains of 1"),
        (Form.LENGTH, (1.5, 1.6), {}, "values has 2 numbers; expected 1"),
        (Form.RATES, (0.5,), {"num_draft_tokens": 2}, "values has 1 numbers; expected 2"),
    ],
)
def test_impossible_values_are_refused(
    quantity: Form, values: tuple[float, ...], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        record(quantity, *values, **changes)


def test_a_length_beyond_the_record_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens is 3; expected 0 to 2"):
        record(Form.RATES, 0.5, 0.25).length(3)


def test_every_published_record_names_its_source_and_converts() -> None:
    records = published_records()
    assert all(one.source for one in records)
    for one in records:
        assert all(0 <= rate <= 1 for rate in (*one.rates, *one.conditional))
        assert sorted(one.rates, reverse=True) == list(one.rates)


def test_published_lengths_are_met() -> None:
    # Mean lengths as printed; where rates had to be smoothed the longest chain's may differ.
    for one in published_records():
        if one.quantity is Form.LENGTH and one.top_k == 1:
            assert one.length(one.num_draft_tokens) == pytest.approx(one.values[0], abs=1e-6)
        elif one.quantity is Form.LENGTHS and "smoothed" not in one.basis:
            assert [one.length(k + 1) for k in range(one.num_draft_tokens)] == pytest.approx(one.values, abs=0.006)


def test_counted_rates_have_the_length_that_was_reported_beside_them() -> None:
    rows = [one for one in published_records() if one.drafter == "rasyosef/Llama-3.2-1B-Instruct-DSpark"]
    assert len(rows) == 5
    for one in rows:
        assert one.length(8) == pytest.approx(float(one.note.split()[-1]), abs=0.005)


def test_published_records_are_those_of_their_pairs() -> None:
    records = published_records()
    (one,) = (one for one in records if (one.target, one.drafter, one.dataset) == ("qwen3-8b", "DSpark", "GSM8K"))
    assert (one.kind, one.temperature, one.values) == (DraftKind.BLOCK, 1.0, (6.17,))
    assert sum(one.target == "deepseek-v4-pro" and one.thinking is False for one in records) == 1
    chains = [one for one in records if (one.target, one.drafter) == ("qwen3-32b", "qwen3-1.7b")]
    assert sum(one.dataset == "MT-Bench" for one in chains) == 6


def test_a_file_loads_as_it_was(tmp_path: Any) -> None:
    origin = Origin(command="c", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")
    saved = AcceptanceRecords(origin=origin, records=(record(Form.RATES, 0.5, 0.25, thinking=True, context=512),))
    saved.save(tmp_path / "a.json")
    assert AcceptanceRecords.load(tmp_path / "a.json") == saved
    assert saved.records[0].key == "t with d (head), thinking, 512 prompt tokens"
