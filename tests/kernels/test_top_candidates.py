import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from swiftspec.kernels.top_candidates import top_candidates, top_candidates_reference
from tools.compiling import MAX_SHARED_BYTES, Compiled

# Sums are in fp32 whatever the logits are: one tolerance.
DTYPES = [(torch.float32, 2e-5), (torch.float16, 2e-5), (torch.bfloat16, 2e-5)]


@pytest.mark.parametrize(("rows", "size", "k"), [(4, 4096, 8), (3, 5003, 5)], ids=["4x4096", "3x5003"])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=lambda value: str(value).removeprefix("torch."))
def test_matches_reference(rows: int, size: int, k: int, dtype: torch.dtype, tolerance: float, device: str) -> None:
    # Half precision knows few numbers: there are equal logits among these, within a block and beyond.
    logits_RV = (10 * torch.randn(rows, size, generator=torch.Generator().manual_seed(size))).to(device, dtype)
    expected, expected_tokens = top_candidates_reference(logits_RV, k)

    logprobs, tokens = top_candidates(logits_RV, k)

    torch.testing.assert_close(logprobs, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(tokens, expected_tokens)


def test_whole_vocabulary_of_qwen(device: str) -> None:
    logits_RV = torch.randn(1, 151936, generator=torch.Generator().manual_seed(0)).to(device)
    logprobs, tokens = top_candidates(logits_RV, 2)
    expected, expected_tokens = top_candidates_reference(logits_RV, 2)
    torch.testing.assert_close(logprobs, expected, rtol=2e-5, atol=2e-5)
    assert torch.equal(tokens, expected_tokens)


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(1, 4100),
        torch.cat([torch.full((1, 4096), -math.inf), torch.tensor([[3.0, 4.0, 3.0]])], dim=1),
        torch.full((1, 3), -3e4),
    ],
    ids=["all-equal", "all-but-three-impossible", "all-of-three"],
)
def test_edges(logits: Tensor, device: str) -> None:
    logprobs, tokens = top_candidates(logits.to(device), 3)
    expected, expected_tokens = top_candidates_reference(logits.to(device), 3)
    torch.testing.assert_close(logprobs, expected, rtol=2e-5, atol=2e-5)
    assert torch.equal(tokens, expected_tokens)


def test_no_rows_are_no_launch(device: str) -> None:
    logprobs, tokens = top_candidates(torch.empty(0, 16, device=device), 4)
    assert logprobs.shape == tokens.shape == (0, 4)


@pytest.mark.parametrize(
    ("logits", "k", "message"),
    [
        (torch.ones(3), 1, r"logits_RV has shape \(3,\); expected \(any, any\)"),
        (torch.ones(1, 1 << 19, device="meta"), 1, "supported: V from 1 to 262144"),
        (torch.ones(2, 7), 8, "k is 8; expected 1 to 7"),
        (torch.ones(2, 100), 33, "k is 33; expected 1 to 32"),
        (torch.ones(2, 7).int(), 1, "logits_RV is torch.int32; supported: "),
        (torch.ones(7, 2).T, 1, "logits_RV has strides .*expected contiguous"),
    ],
    ids=["shape", "vocabulary", "few", "many", "dtype", "strides"],
)
def test_bad_argument_is_named(logits: Tensor, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_candidates(logits, k)


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    gate = compile_gate("top_candidates")
    assert len(gate) == 6  # two launches each
    for compiled in gate:
        assert compiled.stack_bytes == 0
        assert compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.count(r"ld\.global\S*\.v4") >= 1
        assert compiled.count(r"griddepcontrol\.wait") == 1
