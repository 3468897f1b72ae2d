import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from swiftspec.kernels.all_reduce import all_reduce, all_reduce_reference
from swiftspec.kernels.exchange import SENTINEL, Exchange, map_peers
from tests.kernels.buffers import shared_buffers
from tests.kernels.ranks import EPS, Case, Ranks, assert_right, run_all_reduce, run_connected, starting_ranks
from tools.compiling import MAX_SHARED_BYTES, Compiled

# The sum is of rounded parts, in fp32. Under the interpreter a store to bf16 truncates: a whole unit in the last place.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
ROWS = (3, 1, 2, 3, 1, 2, 3, 1)  # every slot is used more than twice, after more rows and after fewer


@pytest.fixture(scope="module")
def ranks(device: str) -> Iterator[Ranks]:
    with starting_ranks(device) as started:
        yield started


@pytest.mark.parametrize(
    ("world_size", "hidden", "dtype"),
    [
        (2, 256, torch.float32),
        (3, 123, torch.float32),
        (2, 1302, torch.float16),  # several programs per row
        (4, 122, torch.float16),
        (3, 512, torch.bfloat16),
        (4, 1030, torch.bfloat16),
    ],
    ids=str,
)
def test_ranks_have_the_reference_and_the_same_bits(
    ranks: Ranks, world_size: int, hidden: int, dtype: torch.dtype
) -> None:
    case = Case(world_size=world_size, hidden=hidden, dtype=dtype, rows=ROWS)
    assert_right(case, ranks.run(run_all_reduce, case), TOLERANCE[dtype])


def test_late_rank_is_waited_for(ranks: Ranks) -> None:
    case = Case(world_size=3, hidden=122, dtype=torch.float16, rows=ROWS, late_rank=1)
    assert_right(case, ranks.run(run_all_reduce, case), TOLERANCE[case.dtype])


def test_absent_rank_is_reported(ranks: Ranks) -> None:
    case = Case(world_size=3, hidden=64, dtype=torch.float32, rows=(2, 2), absent_rank=2, max_polls=200)
    started = time.monotonic()
    answers = ranks.run(run_all_reduce, case)
    assert [answer.error for answer in answers[:2]] == [
        f"rank {rank} of 3 waited 200 polls for rank 2" for rank in (0, 1)
    ]
    assert time.monotonic() - started < 60


def lonely(*, hidden: int = 16, dtype: torch.dtype = torch.float32, max_rows: int = 4, device: str = "cpu") -> Exchange:
    words = Exchange.words_needed(world_size=1, hidden=hidden, dtype=dtype, max_rows=max_rows)
    buffer = torch.full((words,), SENTINEL.value, dtype=torch.int32, device=device)
    return Exchange(map_peers([buffer], 0), hidden, dtype, max_rows)


def test_mixed_dtypes_keep_their_own(device: str) -> None:
    exchange = lonely(dtype=torch.float16, device=device)
    given, weight = torch.randn(3, 16, device=device).half(), torch.randn(16, device=device).half()
    before = torch.randn(3, 16, device=device)
    total, expected = all_reduce_reference([given], before, weight, eps=EPS)
    out = all_reduce(given, before, weight, exchange, eps=EPS)
    assert (out.dtype, before.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(before, total)


def test_no_rows_are_no_launch(device: str) -> None:
    exchange = lonely(device=device)
    none, weight = torch.empty(0, 16, device=device), torch.ones(16, device=device)
    assert all_reduce(none, none.clone(), weight, exchange, eps=EPS).shape == (0, 16)
    assert exchange.state.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_RH": torch.ones(3, 8)}, r"x_RH has shape \(3, 8\); expected \(any, 16\): the exchange's"),
        ({"x_RH": torch.ones(3, 16).half()}, "x_RH is torch.float16; supported: torch.float32"),
        ({"x_RH": torch.ones(5, 16)}, "x_RH has 5 rows; the exchange has room for 4"),
        ({"x_RH": torch.ones(16, 3).T}, r"x_RH has strides \(1, 3\).*expected contiguous"),
        ({"x_RH": torch.ones(3, 16, device="meta")}, "x_RH is on meta; expected cpu, the device of peers"),
        ({"x_RH": torch.ones(3, 32)[:, ::2]}, r"x_RH has strides \(32, 2\)"),
        ({"x_RH": None}, "exactly one of x_RH and num_rows"),
        ({"num_rows": 3}, "exactly one of x_RH and num_rows"),
        ({"residual_RH": torch.ones(2, 16)}, r"residual_RH has shape \(2, 16\); expected \(3, 16\)"),
        ({"weight_H": torch.ones(8)}, r"weight_H has shape \(8,\); expected \(16\)"),
        ({"weight_H": torch.ones(16, dtype=torch.float64)}, "weight_H is torch.float64; supported: "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x_RH": torch.ones(3, 16),
        "residual_RH": torch.ones(3, 16),
        "weight_H": torch.ones(16),
    } | change
    with pytest.raises(ValueError, match=message):
        all_reduce(**arguments, exchange=lonely(), eps=EPS)


def test_half_a_word_off_is_named() -> None:
    off = torch.ones(33).half()[1:].view(2, 16)
    with pytest.raises(ValueError, match=r"x_RH starts at .*; expected a multiple of 4 bytes"):
        all_reduce(off, torch.ones(2, 16), torch.ones(16), lonely(dtype=torch.float16), eps=EPS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 15}, "hidden is 15, of torch.float16; supported: .* whole 32-bit words"),
        ({"hidden": 8194}, "hidden is 8194.*rows of up to 16384 bytes"),
        ({"dtype": torch.float64}, "dtype is torch.float64; supported: "),
        ({"world_size": 9}, "world_size is 9; supported: 1 to 8"),
        ({"max_rows": 0}, "max_rows is 0"),
    ],
)
def test_bad_exchange_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"world_size": 2, "hidden": 16, "dtype": torch.float16, "max_rows": 4} | change
    with pytest.raises(ValueError, match=message):
        Exchange.words_needed(**arguments)


def test_too_small_buffers_are_named() -> None:
    with pytest.raises(ValueError, match="buffers of 16 words; this exchange needs 384"):
        Exchange(map_peers(shared_buffers(2, 16, fill=0), 0), 16, torch.float32, 4)


def test_connected_ranks_reduce_by_what_they_have(ranks: Ranks) -> None:
    case = Case(world_size=2, hidden=122, dtype=torch.float32, rows=(3, 1))
    assert_right(case, ranks.run(run_connected, case), TOLERANCE[case.dtype])


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    for compiled in compile_gate("all_reduce"):
        assert compiled.stack_bytes == 0
        assert compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.count(r"ld\.volatile\.global\.v4") >= 2  # at least one poll of two ranks, not word by word
        assert compiled.count(r"ld\.volatile\.global\.b32") == 3  # the state, and no other
        assert compiled.count(r"st\.global\.v4") >= 2
        assert compiled.count(r"griddepcontrol\.wait") == 1
        assert compiled.count(r"griddepcontrol\.launch_dependents") == 1
