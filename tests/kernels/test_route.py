from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from swiftspec.kernels.route import route, route_reference
from tools.compiling import Compiled


@pytest.mark.parametrize("is_normalised", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize(
    ("rows", "num_experts", "num_active"), [(1, 8, 2), (17, 5, 3), (3, 128, 8), (2, 4, 1)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_matches_a_softmax_in_64_bits(
    rows: int, num_experts: int, num_active: int, dtype: torch.dtype, is_normalised: bool, device: str
) -> None:
    # Half precision knows few numbers: there are equal logits among these.
    logits = (3 * torch.randn(rows, num_experts, generator=torch.Generator().manual_seed(rows))).to(device, dtype)
    every = logits.double().softmax(-1)
    expected = every.sort(-1, descending=True).values[:, :num_active]
    if is_normalised:
        expected /= expected.sum(-1, keepdim=True)

    answers = [function(logits, num_active, is_normalised=is_normalised) for function in (route, route_reference)]

    for weights, chosen in answers:
        assert (weights.dtype, chosen.dtype) == (torch.float32, torch.int32)
        torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)
        assert all(len(set(row)) == num_active for row in chosen.tolist())
    assert torch.equal(answers[0][1], answers[1][1])


def test_ties_go_to_the_lower_expert(device: str) -> None:
    weights, chosen = route(torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]], device=device), 3, is_normalised=True)
    assert chosen.tolist() == [[1, 3, 0]]
    assert weights.sum().item() == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
def test_a_row_of_no_numbers_chooses_experts_that_exist(device: str) -> None:
    _, chosen = route(torch.full((1, 3), torch.nan, device=device), 2, is_normalised=True)
    assert set(chosen.flatten().tolist()) <= {0, 1, 2}


def test_no_rows_are_no_launch(device: str) -> None:
    weights, chosen = route(torch.empty(0, 8, device=device), 2, is_normalised=True)
    assert weights.shape == chosen.shape == (0, 2)


@pytest.mark.parametrize(
    ("logits", "num_active", "message"),
    [
        (torch.ones(3), 1, r"logits_RE has shape \(3,\); expected \(any, any\)"),
        (torch.ones(1, 2000), 1, "supported: E from 1 to 1024"),
        (torch.ones(2, 7), 8, "num_active is 8; expected 1 to 7"),
        (torch.ones(2, 7).int(), 1, "logits_RE is torch.int32; supported: "),
        (torch.ones(7, 2).T, 1, "logits_RE has strides .*expected contiguous"),
    ],
    ids=["shape", "experts", "active", "dtype", "strides"],
)
def test_bad_argument_is_named(logits: Tensor, num_active: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        route(logits, num_active, is_normalised=True)


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    gate = compile_gate("route")
    assert len(gate) == 2
    for compiled in gate:
        assert compiled.stack_bytes == 0
        assert "bar.sync" not in compiled.ptx  # one warp
        assert compiled.count(r"griddepcontrol\.wait") == 1
