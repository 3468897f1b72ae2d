import pytest
import torch

from swiftspec.engine.model.forward_batch import Chunk, Entry, ForwardBatch, Rows
from swiftspec.engine.model.kv_cache import KVCache, PendingHalf, cache_of, checked_caches
from swiftspec.policies.effects import ForwardKind, Row
from tests.engine.shapes import small_spec

ROWS = (Row(3, 5, 0), Row(4, 6, 0b1))


@pytest.fixture
def caches() -> list[KVCache]:
    """An empty one, one with a prefix of 5, and one with a tree of 2 in addition; 8 slots each."""
    caches = [KVCache(small_spec(), capacity=8, dtype=torch.float32) for _ in range(3)]
    for cache in caches[1:]:
        cache.extend_prefix(5)
    caches[2].extend_tree(2)
    return caches


def batch_of(*entries: Entry, kind: ForwardKind = ForwardKind.EXACT) -> ForwardBatch:
    return ForwardBatch(kind, entries)


def test_every_entry_has_the_cache_of_its_sequence(caches: list[KVCache]) -> None:
    found = checked_caches(batch_of(Rows(2, ROWS[:1]), Chunk(0, (1,) * 8)), caches, vocab_size=5)
    assert found == [caches[2], caches[0]]


@pytest.mark.parametrize("sequence", [-1, 3])
def test_an_unknown_sequence_is_named(caches: list[KVCache], sequence: int) -> None:
    message = f"sequence is {sequence}; expected 0 to 2"
    with pytest.raises(ValueError, match=message):
        cache_of(sequence, caches)
    with pytest.raises(ValueError, match=message):
        checked_caches(batch_of(Rows(0, ROWS), Chunk(sequence, (1,))), caches, vocab_size=5)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Chunk(1, (1,) * 4), "sequence 1: cache capacity is 8 slots; 5 in use and 4 more do not fit"),
        (Rows(2, ROWS), "sequence 2: cache capacity is 8 slots; 7 in use and 2 more do not fit"),
        (Chunk(2, (1,)), "sequence 2: cache holds a tree of 2 slots; expected none at prefill"),
        (Rows(1, (ROWS[0], Row(1, 5, 0b100))), r"sequence 1: ancestors\[1\] is 0x4; expected bits below tree slot 2"),
        (Rows(2, (Row(1, 5, 0b1000),)), r"sequence 2: ancestors\[0\] is 0x8; expected bits below tree slot 3"),
        (Rows(1, (Row(1, 5, -1),)), r"sequence 1: ancestors\[0\] is -0x1"),
        (Chunk(1, (1, 5)), "sequence 1: token is 5; expected 0 to 4"),
        (Rows(1, (Row(-1, 5, 0),)), "sequence 1: token is -1; expected 0 to 4"),
        (Rows(1, (Row(1, 8, 0),)), "sequence 1: position is 8; expected 0 to 7"),
    ],
)
def test_an_entry_that_does_not_suit_its_cache_is_named(caches: list[KVCache], entry: Entry, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_caches(batch_of(Chunk(0, (1,)), entry), caches, vocab_size=5)


def test_a_first_half_is_taken_by_its_second(caches: list[KVCache]) -> None:
    pending, held = PendingHalf[str](), caches[:2]
    first = batch_of(Rows(0, ROWS), Rows(1, ROWS), kind=ForwardKind.FIRST_HALF)
    second = batch_of(*first.entries, kind=ForwardKind.SECOND_HALF)
    pending.hold(first, held, "forward")
    assert pending.take(second, held) == "forward"
    with pytest.raises(ValueError, match="second half of sequences 0, 1; expected their first half right before it"):
        pending.take(second, held)


@pytest.mark.parametrize(
    "entries", [(Rows(0, ROWS[:1]), Rows(1, ROWS)), (Rows(1, ROWS),), (Rows(1, ROWS), Rows(0, ROWS))]
)
def test_a_second_half_of_other_rows_is_refused(caches: list[KVCache], entries: tuple[Rows, ...]) -> None:
    pending = PendingHalf[str]()
    pending.hold(batch_of(Rows(0, ROWS), Rows(1, ROWS), kind=ForwardKind.FIRST_HALF), caches[:2], "forward")
    with pytest.raises(ValueError, match="expected their first half right before it"):
        pending.take(batch_of(*entries, kind=ForwardKind.SECOND_HALF), [caches[entry.sequence] for entry in entries])


def test_a_cache_that_changed_between_the_halves_is_refused(caches: list[KVCache]) -> None:
    pending = PendingHalf[str]()
    entries = (Rows(1, ROWS),)
    pending.hold(batch_of(*entries, kind=ForwardKind.FIRST_HALF), caches[1:2], "forward")
    caches[1].reset()
    with pytest.raises(ValueError, match="second half of sequences 1"):
        pending.take(batch_of(*entries, kind=ForwardKind.SECOND_HALF), caches[1:2])
