import numpy as np
import pytest
import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import TreeAttention, tree_visibility
from tests.engine.shapes import small_spec

pytestmark = pytest.mark.usefixtures("one_thread")

# R rows, N slots, G key/value heads, J query heads per key/value head, D head dimension
G, J, D = 2, 2, 8


def reference(queries_GRJD: Tensor, keys_GND: Tensor, values_GND: Tensor, visible_RN: Tensor) -> Tensor:
    """One head after the other, in fp64, [R, J * G * D]."""
    num_rows = queries_GRJD.shape[1]
    mixed = torch.zeros(num_rows, J, G, D, dtype=torch.float64)
    for group in range(G):
        for head in range(J):
            scores = queries_GRJD[group, :, head].double() @ keys_GND[group].double().T
            shares = torch.softmax(scores.masked_fill(~visible_RN, -torch.inf), -1)
            mixed[:, head, group] = shares @ values_GND[group].double()
    return mixed.reshape(num_rows, -1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize(("num_rows", "prefix", "tree"), [(1, 5, 0), (1, 0, 3), (7, 123, 2), (3, 0, 0)])
def test_matches_reference(num_rows: int, prefix: int, tree: int, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    capacity, length = 150, prefix + tree + num_rows
    attend = TreeAttention(small_spec(), num_rows=num_rows, dtype=dtype)
    attend.queries_GRJD.copy_(torch.randn(G, num_rows, J, D, generator=generator))
    keys, values = (torch.randn(1, G, capacity, D, generator=generator).to(dtype) for _ in range(2))
    bits = np.random.default_rng(0).integers(1 << tree, size=num_rows).tolist()
    visible = tree_visibility(bits, tree)
    num_slots = attend.prepare(visible, prefix_length=prefix)
    assert num_slots == length
    mixed = attend(keys[:, :, :num_slots], values[:, :, :num_slots])
    visible_RN = torch.cat([torch.ones(num_rows, prefix, dtype=torch.bool), torch.from_numpy(visible).bool()], dim=1)
    expected = reference(attend.queries_GRJD, keys[0, :, :length], values[0, :, :length], visible_RN)
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=tolerance)


def test_bits_are_slots_and_every_row_sees_itself() -> None:
    assert tree_visibility([0b101, 0b1010], 3).tolist() == [[1, 0, 1, 1, 0], [0, 1, 0, 1, 1]]


def test_visibility_is_right_beyond_a_machine_word() -> None:
    visible = tree_visibility([1 << 70 | 1], 100)
    assert visible.nonzero()[1].tolist() == [0, 70, 100]
