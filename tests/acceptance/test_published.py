from itertools import pairwise

from swiftspec.acceptance.records import Quantity, acceptance_of, published_acceptance


def test_every_record_says_where_it_is_from_and_holds_plausible_figures() -> None:
    for record in published_acceptance():
        assert record.source
        if record.quantity is Quantity.MEAN_LENGTH:
            assert all(1 <= value <= 12 for value in record.values)
        else:
            assert all(0 < value < 1 for value in record.values)
            falling = record.quantity is Quantity.CUMULATIVE_ACCEPTANCE
            assert all((before > after) is falling for before, after in pairwise(record.values))


def test_records_of_a_pair() -> None:
    chains = acceptance_of("qwen3-32b", "qwen3-1.7b", "MT-Bench")
    assert sorted(len(record.values) for record in chains) == [1, 2, 3, 4, 5, 6]
    assert len(acceptance_of("qwen3-32b", "qwen3-1.7b")) == 12
    assert acceptance_of("llama-3-70b", "llama-3.2-3b") == []
    assert [record.values for record in acceptance_of("llama-3-70b", "llama-3-8b")] == [(9.07,), (11.68,)]
