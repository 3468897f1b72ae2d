from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftspec.kernels.keep_slots import keep_slots, keep_slots_reference
from tools.compiling import MAX_SHARED_BYTES, Compiled

DTYPES = [torch.float32, torch.float16, torch.bfloat16]  # a move is exact: no tolerance


def int32(*values: int, device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize(
    ("slots", "dim"),
    [
        ((0, 3, 4, 9, -1, -1, -1, -1), 64),
        ((0, 2, 1, 7, 5), 24),
        ((1,), 64),
        ((0, 1, 2, 3), 16),
        ((-1, -1, -1, -1), 16),
        (tuple(reversed(range(64))), 32),
        (tuple(range(159, -1, -1)), 32),
    ],
    ids=["padded", "reordered", "one", "in-place", "none", "64-reversed", "160-reversed"],
)
def test_matches_reference(slots: tuple[int, ...], dim: int, dtype: torch.dtype, device: str) -> None:
    cache = torch.randn(3, 2, 2, 200, dim, generator=torch.Generator().manual_seed(dim)).to(device, dtype)
    expected, slots_K, prefix = cache.clone(), int32(*slots, device=device), int32(29, device=device)
    keep_slots_reference(expected, slots_K, prefix)

    keep_slots(cache, slots_K, prefix)

    assert torch.equal(cache, expected)


def test_slots_follow_the_prefix(device: str) -> None:
    cache = torch.arange(24.0, device=device).repeat(1, 2, 2, 1)[..., None].contiguous()
    keep_slots(cache, int32(1, 3, 5, -1, device=device), int32(4, device=device))
    assert cache[0, 1, 1, :9, 0].tolist() == [0, 1, 2, 3, 5, 7, 9, 7, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache_L2GCD": torch.ones(2, 3, 2, 9, 8)}, r"cache_L2GCD has shape .*; expected \(any, 2, any, any, any\)"),
        ({"cache_L2GCD": torch.ones(2, 2, 2, 9, 512)}, "supported: D from 1 to 256"),
        ({"cache_L2GCD": torch.ones(2, 2, 2, 8, 9).mT}, "cache_L2GCD has strides .*expected contiguous"),
        ({"cache_L2GCD": torch.ones(2, 2, 2, 9, 8).int()}, "cache_L2GCD is torch.int32; supported: "),
        ({"slots_K": torch.zeros(257).int()}, r"slots_K has shape \(257,\); supported: K from 1 to 256"),
        ({"slots_K": torch.zeros(3).long()}, "slots_K is torch.int64; supported: torch.int32"),
        ({"prefix_1": torch.ones(2).int()}, r"prefix_1 has shape \(2,\); expected \(1\)"),
        ({"prefix_1": torch.ones(1, device="meta").int()}, "prefix_1 is on meta; expected cpu"),
    ],
    ids=["planes", "dim", "strides", "dtype", "slots", "integers", "prefix", "device"],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "cache_L2GCD": torch.ones(2, 2, 2, 9, 8),
        "slots_K": torch.zeros(3, dtype=torch.int32),
        "prefix_1": torch.ones(1, dtype=torch.int32),
    } | change
    with pytest.raises(ValueError, match=message):
        keep_slots(**arguments)


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    for compiled in compile_gate("keep_slots"):
        assert compiled.stack_bytes == 0
        assert compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.count(r"ld\.global\S*\.v4") >= 1
        assert compiled.count(r"st\.global\S*\.v4") >= 1
        last_load = compiled.ptx.rindex(".v4", 0, compiled.ptx.index("st.global.v4"))
        assert "bar.sync" in compiled.ptx[last_load:].split("st.global.v4")[0]
        assert compiled.count(r"griddepcontrol\.wait") == 1
