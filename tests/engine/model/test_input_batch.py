import pytest
import torch

from swiftspec.engine.model.gpu.kv_cache import (
    CAPTURE_SIZES,
    InputBatch,
    SlotMoves,
    ancestor_words,
    capture_size_of,
    packed,
    unpacked,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(("num_rows", "capture_size"), [(1, 1), (2, 2), (3, 4), (9, 16), (33, 64), (64, 64)])
def test_a_capture_size_is_the_next_power_of_two(num_rows: int, capture_size: int) -> None:
    assert capture_size_of(num_rows) == capture_size


def test_words_are_little_endian_and_hold_the_rows_own_slot() -> None:
    words = ancestor_words([0b1, 1 << 31, 1 << 32], 33, 2)
    assert words.dtype.name == "int32"
    assert words.tolist() == [[1, 2], [-(2**31), 4], [0, 8 | 1]]


def test_rows_are_filled_up_with_copies_of_the_last() -> None:
    rows = InputBatch(num_words=2, device=CPU)
    addresses = [view.data_ptr() for view in rows.on_device(1)]
    for last in (7, 9):
        words = ancestor_words([0, 0b1, 0b11], 0, 2)
        rows.send([5, 6, last], [3, 4, 5], words, prefix_length=3, tree_length=0)
        tokens, positions, ancestors = rows.on_device(4)
        assert tokens.tolist() == [5, 6, last, last]
        assert positions.tolist() == [3, 4, 5, 5]
        assert ancestors.tolist() == [[1, 0], [3, 0], [7, 0], [7, 0]]
        assert rows.lengths_2.tolist() == [3, 0]
    assert addresses == [view.data_ptr() for view in rows.on_device(2)]


def test_every_view_begins_where_a_kernel_loads_sixteen_bytes() -> None:
    rows, moves = InputBatch(num_words=3, device=CPU), SlotMoves(num_slots=33, device=CPU)
    views = [rows.lengths_2, *rows.on_device(1), moves.prefix_1, moves.slots_K]
    assert [view.data_ptr() % 16 for view in views] == [0] * len(views)
    assert rows.on_device(CAPTURE_SIZES[-1])[2].is_contiguous()


def test_moves_are_padded_with_none() -> None:
    moves = SlotMoves(num_slots=5, device=CPU)
    moves.send([3, 1, 2, 0], prefix_length=8)
    moves.send([3, 1], prefix_length=9)
    assert moves.slots_K.tolist() == [3, 1, -1, -1, -1]
    assert moves.prefix_1.tolist() == [9]


def test_candidates_survive_the_packing() -> None:
    logprobs, tokens = torch.tensor([[-0.5, -1.25], [-0.0, -1e-30]]), torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    assert unpacked(packed(logprobs, tokens)) == (tokens.tolist(), logprobs.tolist())
