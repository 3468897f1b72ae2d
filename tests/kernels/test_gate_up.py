from collections.abc import Callable
from typing import Any

import pytest
import torch

from swiftspec.kernels.products import TileConfig
from swiftspec.kernels.skinny_gemm import gate_up, gate_up_reference
from tests.kernels.streaming import check_streaming
from tools.compiling import Compiled

# Under the interpreter a store to bf16 truncates, so that it is off by a whole unit in the last place.
TOLERANCE = [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
CONFIGS = [
    TileConfig(block_n=128, block_k=128),
    TileConfig(block_n=128, block_k=64, split_k=3),
    TileConfig(block_n=64, block_k=128, split_k=2, swap_ab=True),
]


@pytest.mark.parametrize(("rows", "n", "k"), [(8, 256, 512), (5, 246, 213)], ids=lambda value: str(value))
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "split", "swap-split"])
def test_matches_reference(
    rows: int, n: int, k: int, dtype: torch.dtype, tolerance: float, config: TileConfig, device: str
) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, k, generator=generator).to(device, dtype)
    weight = (torch.randn(n, k, generator=generator) / k**0.5).to(device, dtype)

    out = gate_up(x, weight, config=config)

    torch.testing.assert_close(out, gate_up_reference(x, weight), rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # to infinity, which is right: silu divides by it
def test_large_gates_neither_overflow_nor_vanish(device: str) -> None:
    x = torch.tensor([[200.0], [-200.0]], device=device)
    torch.testing.assert_close(gate_up(x, torch.ones(2, 1, device=device)).flatten().tolist(), [40000.0, 0.0])


def test_no_rows_are_no_launch(device: str) -> None:
    assert gate_up(torch.empty(0, 16, device=device), torch.ones(8, 16, device=device)).shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_RK": torch.ones(3, 7)}, r"x_RK has shape \(3, 7\); expected \(any, 8\): K of weight_NK"),
        ({"x_RK": torch.ones(8, 3).T}, r"x_RK has strides \(1, 3\).*expected contiguous"),
        ({"weight_NK": torch.ones(5, 8)}, r"weight_NK has shape \(5, 8\); supported: an even N"),
        ({"weight_NK": torch.ones(4, 8).half()}, "weight_NK is torch.float16; supported: torch.float32"),
        ({"weight_NK": torch.ones(4, 8, device="meta")}, "weight_NK is on meta; expected cpu, the device of x_RK"),
        ({"out": torch.ones(3, 4)}, r"out has shape \(3, 4\); expected \(3, 2\)"),
    ],
    ids=["columns", "strides", "odd", "dtype", "device", "out"],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x_RK": torch.ones(3, 8), "weight_NK": torch.ones(4, 8)} | change
    with pytest.raises(ValueError, match=message):
        gate_up(**arguments)


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    compiled_kernels = compile_gate("gate_up")
    assert len(compiled_kernels) == 6
    for compiled in compiled_kernels:
        check_streaming(compiled, first_loads=4)
        assert compiled.count(r"wgmma\.mma_async") >= 8
