import pytest
import torch

from swiftspec.kernels.quantised_gemm import Fp8Weight, Int4Weight


def _weight(n: int, k: int) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n))


def test_int4_is_off_by_half_a_step_at_most() -> None:
    weight = _weight(6, 512)
    quantised = Int4Weight.quantise(weight)

    steps = weight.view(6, 4, 128).abs().amax(-1, keepdim=True) / 7
    error = (quantised.dequantise() - weight).view(6, 4, 128).abs()

    assert quantised.shape == (6, 512)
    assert (error <= 0.501 * steps).all()  # the scale itself is rounded to fp16: a thousandth


def test_int4_keeps_what_it_can_represent() -> None:
    nibbles = torch.randint(0, 16, (3, 512), generator=torch.Generator().manual_seed(0))
    scales = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)).half()
    expected = (nibbles - 8) * scales.float().repeat_interleave(128, dim=1)
    assert torch.equal(Int4Weight.pack(nibbles, scales).dequantise(), expected)


def test_int4_words_are_laid_out_as_documented() -> None:
    nibbles = torch.full((1, 512), 0)
    p, half, c, j = 2, 1, 3, 5
    nibbles[0, 256 + 64 * p + 8 * j + 2 * c + half] = 9
    words = Int4Weight.pack(nibbles, torch.ones(1, 4).half()).words
    expected = torch.zeros(1, 64, dtype=torch.int32)
    expected[0, 32 + 8 * c + j] = 9 << (16 * half + 4 * p)
    assert torch.equal(words, expected)


def test_int4_zeros_stay_zeros() -> None:
    assert not Int4Weight.quantise(torch.zeros(2, 256)).dequantise().any()


def test_fp8_is_off_by_a_sixteenth_at_most() -> None:
    weight = _weight(6, 100)
    quantised = Fp8Weight.quantise(weight)
    error = (quantised.dequantise() - weight).abs()
    smallest_normal = quantised.scales[:, None] * 2.0**-6
    assert quantised.shape == (6, 100)
    assert (error <= torch.maximum(weight.abs(), smallest_normal) / 16).all()


def test_fp8_keeps_the_largest_and_zeros() -> None:
    weight = torch.tensor([[0.0, 3.0, -7.0], [0.0, 0.0, 0.0]])
    dequantised = Fp8Weight.quantise(weight).dequantise()
    assert dequantised[0, [0, 2]].tolist() == [0.0, -7.0]
    assert not dequantised[1].any()


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(4, 384), r"weight_NK has shape \(4, 384\); supported: K in steps of 256"),
        (torch.ones(4), r"weight_NK has shape \(4,\); expected \(any, any\)"),
        (torch.ones(0, 256), r"weight_NK has shape \(0, 256\); supported: N and K from 1"),
        (torch.ones(4, 256, dtype=torch.int32), "weight_NK is torch.int32; supported: torch.float32"),
    ],
    ids=["columns", "dimensions", "empty", "dtype"],
)
def test_bad_weight_is_named(weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Int4Weight.quantise(weight)


def test_parts_that_do_not_fit_are_named() -> None:
    words, scales = torch.zeros(4, 32, dtype=torch.int32), torch.zeros(1, 4, 2, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"words has shape \(4, 31\)"):
        Int4Weight(words[:, :31], scales)
    with pytest.raises(ValueError, match=r"scales has shape \(1, 3, 2\); expected \(1, 4, 2\)"):
        Int4Weight(words, scales[:, :3])
    with pytest.raises(ValueError, match=r"scales is torch.float32; supported: torch.float16"):
        Int4Weight(words, scales.float())
    with pytest.raises(ValueError, match=r"scales has shape \(3,\); expected \(4\): N of values"):
        Fp8Weight(torch.zeros(4, 8).to(torch.float8_e4m3fn), torch.ones(3))
