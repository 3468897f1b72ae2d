from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from swiftspec.kernels.exchange import SENTINEL, Exchange, map_peers
from tests.kernels.ranks import EPS, Case, Ranks, assert_right, run_gemm_all_reduce, starting_ranks
from tools.compiling import MAX_SHARED_BYTES, Compiled
from tools.gemm_all_reduce import Workspace, gemm_all_reduce, gemm_all_reduce_reference

# A product that is rounded the other way before it is sent is off by one unit in its last place, in every rank's part.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
ROWS = (3, 1, 2, 3, 1, 2, 3, 1)


@pytest.fixture(scope="module")
def ranks(device: str) -> Iterator[Ranks]:
    with starting_ranks(device) as started:
        yield started


@pytest.mark.parametrize(
    ("world_size", "hidden", "size_k", "dtype"),
    [
        (2, 64, 128, torch.float32),
        (3, 83, 77, torch.float32),
        (2, 128, 512, torch.float16),  # two programs per tile
        (3, 70, 301, torch.float16),
        (3, 70, 640, torch.bfloat16),
    ],
    ids=str,
)
def test_ranks_have_the_reference_and_the_same_bits(
    ranks: Ranks, world_size: int, hidden: int, size_k: int, dtype: torch.dtype
) -> None:
    case = Case(world_size=world_size, hidden=hidden, dtype=dtype, rows=ROWS, size_k=size_k)
    assert_right(case, ranks.run(run_gemm_all_reduce, case), TOLERANCE[dtype])


def test_absent_rank_is_reported(ranks: Ranks) -> None:
    case = Case(world_size=2, hidden=64, size_k=64, dtype=torch.float32, rows=(2, 2), absent_rank=0, max_polls=200)
    assert ranks.run(run_gemm_all_reduce, case)[1].error == "rank 1 of 2 waited 200 polls for rank 0"


def lonely(*, max_rows: int = 64, device: str = "cpu") -> Exchange:
    words = Exchange.words_needed(world_size=1, hidden=32, dtype=torch.float32, max_rows=max_rows)
    buffer = torch.full((words,), SENTINEL.value, dtype=torch.int32, device=device)
    return Exchange(map_peers([buffer], 0), 32, torch.float32, max_rows)


@pytest.mark.parametrize("rows", [17, 64])
def test_many_rows(rows: int, device: str) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, residual = (torch.randn(rows, size, generator=generator).to(device) for size in (40, 32))
    weight, norm = torch.randn(32, 40, generator=generator).to(device), torch.ones(32, device=device)
    total, expected = gemm_all_reduce_reference([x], [weight], residual, norm, eps=EPS)
    out = gemm_all_reduce(x, weight, residual, norm, lonely(device=device), eps=EPS)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(residual, total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_RK": torch.ones(65, 16)}, r"x_RK has shape \(65, 16\); supported: R up to 64, K from 1"),
        ({"x_RK": torch.ones(3, 16).half()}, "x_RK is torch.float16; supported: torch.float32"),
        ({"x_RK": torch.ones(16, 3).T}, r"x_RK has strides \(1, 3\).*expected contiguous"),
        ({"x_RK": torch.ones(3, 16, device="meta")}, "x_RK is on meta; expected cpu, the device of peers"),
        ({"weight_NK": torch.ones(16, 16)}, r"weight_NK has shape \(16, 16\); expected \(32, 16\): H of the exchange"),
        ({"residual_RH": torch.ones(2, 32)}, r"residual_RH has shape \(2, 32\); expected \(3, 32\)"),
        ({"workspace": Workspace(torch.empty(1), torch.empty(0))}, "workspace is for 0 tiles; H is 32"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_argument_is_named_before_a_row_leaves(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x_RK": torch.ones(3, 16),
        "weight_NK": torch.ones(32, 16),
        "residual_RH": torch.ones(3, 32),
        "norm_H": torch.ones(32),
    } | change
    exchange = lonely()
    with pytest.raises(ValueError, match=message):
        gemm_all_reduce(**arguments, exchange=exchange, eps=EPS)
    assert (exchange.peers.own == SENTINEL.value).all()


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    for compiled in compile_gate("gemm_all_reduce"):
        assert compiled.stack_bytes == 0
        assert compiled.count(r"griddepcontrol\.wait") == 1
        assert compiled.count(r"st\.global\.v4") >= 2
        if compiled.name == "_gemm_push_kernel":
            assert compiled.shared_bytes <= MAX_SHARED_BYTES // 2  # two per SM
            assert compiled.count(r"wgmma\.mma_async\.sync\.aligned\.m64") > 0
            assert compiled.count(r"cp\.async\.cg") > 0
            assert compiled.count(r"ld\.global\.cg\.v4") >= 2  # the other programs' parts
            assert compiled.count(r"ld\.global\S*\.b16") == 0
            assert compiled.count(r"ld\.volatile") == 1  # whose turn it is: nothing is awaited
        else:
            assert compiled.count(r"ld\.volatile\.global\.v4") >= 2
