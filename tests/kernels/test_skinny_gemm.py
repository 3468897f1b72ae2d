import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from swiftspec.kernels.products import NUM_PARTIALS, TileConfig, Workspace, _workspace, default_config
from swiftspec.kernels.skinny_gemm import skinny_gemm, skinny_gemm_reference
from tests.kernels.streaming import check_streaming
from tools.compiling import Compiled

# Under the interpreter a store to bf16 truncates, so that it is off by a whole unit in the last place.
TOLERANCE = [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
SHAPES = [(8, 256, 512), (5, 123, 213)]
CONFIGS = [
    TileConfig(block_n=128, block_k=128),
    TileConfig(block_n=128, block_k=64, split_k=4),
    TileConfig(block_n=64, block_k=128, split_k=3, swap_ab=True),
]


def _tensors(rows: int, n: int, k: int, device: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((rows, k), (n, k)))
    return x.to(device, dtype), (weight / k**0.5).to(device, dtype)


@pytest.mark.parametrize(("rows", "n", "k"), SHAPES, ids=lambda value: str(value))
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "split", "swap-split"])
def test_matches_reference(
    rows: int, n: int, k: int, dtype: torch.dtype, tolerance: float, config: TileConfig, device: str
) -> None:
    x, weight = _tensors(rows, n, k, device, dtype)

    out = skinny_gemm(x, weight, config=config)

    torch.testing.assert_close(out, skinny_gemm_reference(x, weight), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [1, 17, 64])
def test_any_number_of_rows(rows: int, device: str) -> None:
    x, weight = _tensors(rows, 128, 256, device, torch.float32)
    torch.testing.assert_close(skinny_gemm(x, weight), skinny_gemm_reference(x, weight), rtol=1e-5, atol=1e-5)


def test_split_leaves_its_counters_at_zero_and_repeats_its_bits(device: str) -> None:
    x, weight = _tensors(3, 96, 640, device, torch.float32)
    workspace = Workspace(torch.empty(5 * 2 * 3 * 64, device=device), torch.zeros(2, dtype=torch.int32, device=device))
    config = TileConfig(block_n=64, block_k=64, split_k=5)

    first = skinny_gemm(x, weight, config=config, workspace=workspace)

    assert workspace.arrivals.tolist() == [0, 0]
    assert torch.equal(skinny_gemm(x, weight, config=config, workspace=workspace), first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs and dependent launches are a GPU's")
@pytest.mark.parametrize("split_k", [1, 4])
def test_dependent_launches_in_a_graph_are_right_every_time(split_k: int) -> None:
    x, weight = _tensors(8, 2048, 2048, "cuda", torch.bfloat16)
    hidden, out, workspace = torch.empty_like(x), torch.empty_like(x), Workspace.allocate("cuda")
    config = TileConfig(block_n=64, block_k=128, split_k=split_k, swap_ab=True)

    def forward() -> None:
        skinny_gemm(x, weight, config=config, out=hidden, workspace=workspace, pdl=True)
        skinny_gemm(hidden, weight, config=config, out=out, workspace=workspace, pdl=True)

    forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            forward()
    for scale in (1.0, -2.0, 0.5):
        x.mul_(scale)
        graph.replay()
        expected = skinny_gemm_reference(skinny_gemm_reference(x, weight), weight)
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())


def test_more_programs_than_tiles_of_k(device: str) -> None:
    x, weight = _tensors(2, 64, 300, device, torch.float32)
    out = skinny_gemm(x, weight, config=TileConfig(block_n=64, block_k=64, split_k=4))
    torch.testing.assert_close(out, skinny_gemm_reference(x, weight), rtol=1e-5, atol=1e-5)


def test_no_rows_are_no_launch(device: str) -> None:
    assert skinny_gemm(torch.empty(0, 16, device=device), torch.ones(8, 16, device=device)).shape == (0, 8)


def test_answer_goes_where_it_is_asked_to(device: str) -> None:
    x, weight = _tensors(2, 64, 64, device, torch.float32)
    out = torch.empty(2, 64, device=device)
    assert skinny_gemm(x, weight, out=out) is out
    torch.testing.assert_close(out, skinny_gemm_reference(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_RK": torch.ones(3, 7)}, r"x_RK has shape \(3, 7\); expected \(any, 8\): K of weight_NK"),
        ({"x_RK": torch.ones(65, 8)}, r"x_RK has shape \(65, 8\); supported: at most 64 rows"),
        ({"x_RK": torch.ones(3, 8, dtype=torch.float64)}, "x_RK is torch.float64; supported: "),
        ({"x_RK": torch.ones(8, 3).T}, r"x_RK has strides \(1, 3\).*expected contiguous"),
        ({"weight_NK": torch.ones(8)}, r"weight_NK has shape \(8,\); expected \(any, any\)"),
        ({"weight_NK": torch.ones(0, 8)}, r"weight_NK has shape \(0, 8\); supported: N and K from 1"),
        ({"weight_NK": torch.ones(4, 8).half()}, "weight_NK is torch.float16; supported: torch.float32"),
        ({"weight_NK": torch.ones(8, 4).T}, r"weight_NK has strides \(1, 4\).*expected contiguous"),
        ({"weight_NK": torch.ones(4, 8, device="meta")}, "weight_NK is on meta; expected cpu, the device of x_RK"),
        ({"out": torch.ones(3, 5)}, r"out has shape \(3, 5\); expected \(3, 4\)"),
        ({"out": torch.ones(3, 4).half()}, "out is torch.float16; supported: torch.float32"),
        (
            {"workspace": Workspace(torch.empty(10), torch.zeros(1, dtype=torch.int32)), "config": CONFIGS[1]},
            r"workspace.partials has 10 elements; this product and tiling need 1536",
        ),
        (
            {"workspace": Workspace(torch.ones(1536), torch.ones(1)), "config": CONFIGS[1]},
            r"workspace.arrivals is torch.float32; supported: torch.int32",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x_RK": torch.ones(3, 8), "weight_NK": torch.ones(4, 8)} | change
    with pytest.raises(ValueError, match=message):
        skinny_gemm(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_n": 48}, "block_n is 48; expected a power of 2 from 16"),
        ({"block_k": 8}, "block_k is 8; expected a power of 2 from 16"),
        ({"split_k": 0}, "split_k is 0; expected 1 to 16"),
        ({"num_warps": 3}, "num_warps is 3; expected 1, 2, 4 or 8"),
        ({"num_stages": 9}, "num_stages is 9; expected 1 to 8"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_tiling_is_named(change: dict[str, int], message: str) -> None:
    tiling: dict[str, Any] = {"block_n": 64, "block_k": 64} | change
    with pytest.raises(ValueError, match=message):
        TileConfig(**tiling)


@pytest.mark.parametrize("n", [64, 2560, 8192, 12608, 16832, 25280, 128256])
@pytest.mark.parametrize("bits", [4, 16])
def test_every_default_fits_the_default_workspace(n: int, bits: int) -> None:
    config = default_config(64, n, 16384, bits=bits)
    assert config.split_k == 1 or config.split_k * 64 * n <= NUM_PARTIALS


def test_workspace_of_a_stream_is_not_made_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert Workspace.of_stream(cpu) is Workspace.of_stream(cpu)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="pass a workspace allocated before it"):
        _workspace(cpu, 7)


def test_narrow_products_are_split_and_wide_ones_are_not() -> None:
    assert default_config(8, 4096, 14336).split_k == 8  # 64 tiles of the output, for 264 programs
    assert default_config(8, 28672, 4096).split_k == 1
    assert default_config(8, 14336, 8192, bits=4).split_k == 2
    assert default_config(8, 64, 256).split_k == 1  # two tiles of K: too few to share


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    *swapped, wide, plain = compile_gate("skinny_gemm")
    for compiled in (*swapped, wide, plain):
        check_streaming(compiled, first_loads=4)
        # Every one of these is split: partial sums, a barrier, one thread's arrival, and what it learnt to all.
        assert re.search(
            r"st\.global\.cg.*bar\.sync.*atom\.global\.gpu\.acq_rel.*bar\.sync.*ld\.global\.cg", compiled.ptx, re.S
        )
    assert all(compiled.count(r"wgmma\.mma_async\S*m64n16k16") for compiled in swapped)
    assert wide.count(r"wgmma\.mma_async\S*m64n64k16")
    assert plain.count(r"mma\.sync\S*m16n8k16")
