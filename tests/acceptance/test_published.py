from itertools import pairwise

from swiftspec.acceptance.records import Quantity, published_acceptance


def test_every_record_says_where_it_is_from_and_holds_plausible_figures() -> None:
    for record in published_acceptance():
        assert record.source
        if record.quantity is Quantity.MEAN_LENGTH:
            assert all(1 <= value <= 12 for value in record.values)
        else:
            assert all(0 < value < 1 for value in record.values)
            falling = record.quantity is Quantity.CUMULATIVE_ACCEPTANCE
            assert all((before > after) is falling for before, after in pairwise(record.values))
