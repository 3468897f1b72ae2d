"""Acceptance of heads and block drafters that a plan assumes, against what was published."""

from statistics import mean, median

from swiftspec.acceptance.records import Form, published_records
from swiftspec.acceptance.usual import published_rates
from swiftspec.studies.backtest.head_acceptance import KNOWN_CHAIN, LONG_CHAIN, by_text_rows, head_acceptance_rows

ROWS = head_acceptance_rows()
HELD_OUT = [row for row in ROWS if "from other targets" in row.name]
LONGER = [row for row in ROWS if f"chain of {LONG_CHAIN}" in row.name]


def errors(*words: str) -> list[float]:
    return [abs(row.error) for row in HELD_OUT if all(word in row.name for word in words)]


def test_every_length_of_the_table_is_predicted_from_other_targets() -> None:
    assert len(HELD_OUT) == 4 * 3 * 9
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert median(errors()) < 0.04
    assert max(errors()) < 0.25


def test_targets_of_one_family_stand_in_for_each_other_better_than_another_family() -> None:
    qwen = errors("qwen3-8b")
    assert median(qwen) < 0.03
    assert median(errors("gemma4-12b")) > 2 * median(qwen)


def test_block_drafters_of_targets_are_more_alike_than_their_heads() -> None:
    assert max(mean(errors("DFlash")), mean(errors("DSpark"))) < 0.5 * mean(errors("EAGLE-3"))


def test_a_targets_own_record_would_have_no_error() -> None:
    row = HELD_OUT[0]
    target, _, rest = row.name.partition(" + ")
    drafter, dataset, _ = rest.split(", ")
    table = [one for one in published_records() if one.source == row.source]
    rates = published_rates(target, drafter, dataset, records=table).rates
    length = total = 1.0
    for rate in rates:
        total *= rate
        length += total
    assert abs(length / row.published - 1) < 1e-3
    assert abs(row.error) > 1e-3


def test_longer_chains_follow_from_three_tokens() -> None:
    lengths = [
        one
        for one in published_records()
        if one.source.startswith("SemiAnalysisAI/InferenceX") and one.quantity is Form.LENGTHS
    ]
    assert len(LONGER) == len(lengths)
    assert KNOWN_CHAIN < LONG_CHAIN
    assert median(abs(row.error) for row in LONGER) < 0.08
    assert max(abs(row.error) for row in LONGER) < 0.15


def test_the_class_of_text_tells_more_than_the_mean_of_all_texts() -> None:
    """Drafters of other sources, on the same class of text: a third better than 2 tokens per round for everything."""
    rows = [row for row in by_text_rows() if "eagle" in row.name.lower() or "dflash" in row.name.lower()]
    assert len(rows) > 150
    assert median(abs(row.error) for row in rows) < 0.15
    assert median(abs(2 / row.published - 1) for row in rows) > 0.3
