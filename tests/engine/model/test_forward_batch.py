import pytest

from swiftspec.engine.model.forward_batch import Chunk, Entry, ForwardBatch, Rows, as_candidates
from swiftspec.policies.effects import Candidates, ForwardKind, Row

ROWS = (Row(3, 5, 0), Row(4, 6, 0b1))


def test_rows_and_chunks_count_what_they_compute_and_what_they_answer() -> None:
    entries = Rows(1, ROWS), Chunk(0, (7, 8, 9)), Chunk(0, (7, 8, 9), all_logits=True)
    assert [(entry.num_rows, entry.num_logits) for entry in entries] == [(2, 2), (3, 1), (3, 3)]


def test_an_exact_forward_mixes_chunks_and_rows() -> None:
    entries = (Rows(1, ROWS), Chunk(0, (7,)), Rows(7, ROWS[:1]))
    assert ForwardBatch(ForwardKind.EXACT, entries).entries == entries


@pytest.mark.parametrize("kind", [ForwardKind.LAYER_PARALLEL, ForwardKind.FIRST_HALF, ForwardKind.SECOND_HALF])
def test_a_chunk_is_computed_exactly(kind: ForwardKind) -> None:
    with pytest.raises(ValueError, match=f"sequence 4 has a chunk in a {kind} forward; expected rows"):
        ForwardBatch(kind, (Rows(1, ROWS), Chunk(4, (7,))))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((), "entries are empty"),
        ((Rows(2, ROWS), Chunk(1, (7,)), Rows(2, ROWS)), "sequence 2 has several entries"),
        ((Chunk(1, (7,)), Rows(1, ROWS)), "sequence 1 has several entries"),
        ((Rows(0, ROWS), Rows(6, ())), "sequence 6 has an empty entry"),
        ((Chunk(3, ()),), "sequence 3 has an empty entry"),
        ((Chunk(3, (1,) * 129, all_logits=True),), "sequence 3 wants all logits of 129 tokens; expected at most 128"),
    ],
)
def test_what_is_no_batch_is_named(entries: tuple[Entry, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ForwardBatch(ForwardKind.EXACT, entries)


def test_a_negative_number_of_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="top_k is -1; expected 0"):
        ForwardBatch(ForwardKind.EXACT, (Rows(0, ROWS),), top_k=-1)


def test_candidates_are_paired_row_by_row() -> None:
    expected = (Candidates((3, 1), (-0.5, -1.0)), Candidates((4, 2), (-0.1, -2.0)))
    assert as_candidates([[3, 1], [4, 2]], [[-0.5, -1.0], [-0.1, -2.0]]) == expected
