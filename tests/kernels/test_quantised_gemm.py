import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from swiftspec.kernels.products import TileConfig
from swiftspec.kernels.quantised_gemm import Fp8Weight, Int4Weight, quantised_gemm, quantised_gemm_reference
from tests.kernels.streaming import check_streaming
from tools.compiling import MAX_SHARED_BYTES, Compiled

# Under the interpreter a store to bf16 truncates, so that it is off by a whole unit in the last place.
TOLERANCE = [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
KINDS: list[type[Int4Weight] | type[Fp8Weight]] = [Int4Weight, Fp8Weight]
IDS = ["int4", "fp8"]
WIDE_TILES = TileConfig(block_n=64, block_k=256, split_k=3, num_stages=3)


def _tensors(rows: int, n: int, k: int, device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((rows, k), (n, k)))
    return x.to(device, dtype), (weight / k**0.5).to(device)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize(("rows", "n", "k"), [(8, 128, 512), (5, 90, 768)], ids=lambda value: str(value))
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_matches_reference(
    kind: Any, rows: int, n: int, k: int, dtype: torch.dtype, tolerance: float, gated: bool, device: str
) -> None:
    x, weight_NK = _tensors(rows, n, k, device, dtype)
    weight = kind.quantise(weight_NK)

    out = quantised_gemm(x, weight, gated=gated)

    expected = quantised_gemm_reference(x, weight, gated=gated)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize("rows", [1, 33, 64])
@pytest.mark.parametrize("swap_ab", [False, True], ids=["plain", "swap"])
def test_any_rows_tiling_and_split(kind: Any, rows: int, swap_ab: bool, device: str) -> None:
    # 16 bits, as in the engine: tiles of 64 rows in fp32 take more shared memory than there is, or half a minute to
    # compile. 3 splits share 4 blocks: the last has none.
    x, weight_NK = _tensors(rows, 64, 1024, device, torch.float16)
    weight = kind.quantise(weight_NK)
    config = dataclasses.replace(WIDE_TILES, swap_ab=swap_ab)

    out = quantised_gemm(x, weight, config=config)

    torch.testing.assert_close(out, quantised_gemm_reference(x, weight), rtol=2e-3, atol=2e-3)


def test_odd_inputs_of_fp8(device: str) -> None:
    x, weight_NK = _tensors(3, 50, 123, device, torch.float32)
    weight = Fp8Weight.quantise(weight_NK)
    torch.testing.assert_close(quantised_gemm(x, weight), quantised_gemm_reference(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_no_rows_are_no_launch(kind: Any, device: str) -> None:
    weight = kind.quantise(torch.ones(8, 256, device=device))
    assert quantised_gemm(torch.empty(0, 256, device=device), weight).shape == (0, 8)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_RK": torch.ones(3, 255)}, r"x_RK has shape \(3, 255\); expected \(any, 256\): K of weight_NK"),
        ({"x_RK": torch.ones(65, 256)}, r"x_RK has shape \(65, 256\); supported: at most 64 rows"),
        ({"x_RK": torch.ones(256, 3).T}, r"x_RK has strides \(1, 3\).*expected contiguous"),
        ({"x_RK": torch.ones(3, 256, device="meta")}, "is on cpu; expected meta, the device of x_RK"),
        ({"x_RK": torch.ones(3, 256, dtype=torch.float64)}, "x_RK is torch.float64; supported: "),
        ({"out": torch.ones(3, 6)}, r"out has shape \(3, 6\); expected \(3, 5\)"),
        ({"gated": True}, r"weight_NK has shape \(5, 256\); supported: an even N"),
    ],
    ids=["columns", "rows", "strides", "device", "dtype", "out", "gated"],
)
def test_bad_argument_is_named(kind: Any, change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x_RK": torch.ones(3, 256), "weight": kind.quantise(torch.ones(5, 256))} | change
    with pytest.raises(ValueError, match=message):
        quantised_gemm(**arguments)


def test_tiling_that_splits_a_block_is_named() -> None:
    with pytest.raises(ValueError, match=r"config.block_k is 128; expected 256"):
        quantised_gemm(
            torch.ones(3, 256), Int4Weight.quantise(torch.ones(8, 256)), config=TileConfig(block_n=64, block_k=128)
        )


def test_the_widest_tiles_fit_into_shared_memory(compile_gate: Callable[[str], list[Compiled]]) -> None:
    compiled = compile_gate("quantised_gemm_tiles")
    assert [kernel.name for kernel in compiled] == ["_int4_gemm_kernel", "_skinny_gemm_kernel"]
    assert max(kernel.shared_bytes for kernel in compiled) <= MAX_SHARED_BYTES


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    compiled_kernels = compile_gate("quantised_gemm")
    for compiled in compiled_kernels:
        check_streaming(compiled, first_loads=2)
        assert compiled.count(r"wgmma\.mma_async|mma\.sync") >= 8
    *few_rows, _many_rows = (compiled for compiled in compiled_kernels if compiled.name == "_int4_gemm_kernel")
    assert len(few_rows) == 8
    for compiled in few_rows:
        assert 3 * compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.registers <= 128
        # int4 becomes an operand in registers: every thread reads 4 times 4 words of a tile (the loop's and the first)
        # and writes nothing back for the matrix unit to read.
        assert compiled.count(r"ld\.shared\.v4") == 8
        assert compiled.count(r"ldmatrix") == 0
        assert compiled.count(r"wgmma\.mma_async\S*m64n16k16") == 32
