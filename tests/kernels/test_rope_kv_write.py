from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from swiftspec.kernels.rope_kv_write import rope_kv_write, rope_kv_write_reference
from tools.compiling import MAX_SHARED_BYTES, Compiled

# Under the interpreter a store to bf16 truncates, so that it is off by a whole unit in the last place.
TOLERANCE = [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]


def angles(capacity: int, dim: int) -> Tensor:
    """cos | sin [capacity, dim] of Llama's frequencies."""
    phases = torch.outer(torch.arange(capacity).float(), 1e4 ** -(torch.arange(0, dim, 2) / dim))
    return torch.cat([phases.cos(), phases.sin()], dim=-1)


def case(rows: int, *, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows)
    qkv_RQ = torch.randn(rows, (heads + 2 * kv_heads) * dim, generator=generator)
    norms_2D = torch.rand(2, dim, generator=generator) + 0.5
    return {
        "qkv_RQ": qkv_RQ.to(device, dtype),
        "cos_sin_CD": angles(40, dim).to(device),
        "positions_R": torch.arange(rows, device=device).mul(7).remainder(40).to(torch.int32),
        "lengths_2": torch.tensor([17, 3], dtype=torch.int32, device=device),
        "num_heads": heads,
        "q_norm_D": norms_2D[0].to(device, dtype),
        "k_norm_D": norms_2D[1].to(device, dtype),
        "eps": 1e-6,
    }


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim"), [(8, 16, 2, 64), (5, 3, 1, 128)], ids=["8-rows", "5-rows"]
)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("has_norm", [True, False], ids=["norm", "plain"])
def test_matches_reference(
    rows: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, tolerance: float, has_norm: bool, device: str
) -> None:
    arguments = case(rows, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype, device=device)
    if not has_norm:
        arguments |= {"q_norm_D": None, "k_norm_D": None}
    untouched = torch.randn(2, kv_heads, 40, dim, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    expected_2GCD, cache_2GCD = untouched.clone(), untouched.clone()
    expected = rope_kv_write_reference(keys_GCD=expected_2GCD[0], values_GCD=expected_2GCD[1], **arguments)

    out = rope_kv_write(keys_GCD=cache_2GCD[0], values_GCD=cache_2GCD[1], **arguments)

    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(cache_2GCD[0], expected_2GCD[0], rtol=tolerance, atol=tolerance)
    assert torch.equal(cache_2GCD[1], expected_2GCD[1])  # values are moved, not computed
    for other in (slice(0, 20), slice(20 + rows, None)):
        assert torch.equal(cache_2GCD[:, :, other], untouched[:, :, other])


def test_rotates_as_transformers_does(device: str) -> None:
    arguments = case(4, heads=6, kv_heads=2, dim=32, dtype=torch.float32, device=device)
    arguments |= {"q_norm_D": None, "k_norm_D": None}
    keys_GCD, values_GCD = torch.zeros(2, 2, 40, 32, device=device)

    out = rope_kv_write(keys_GCD=keys_GCD, values_GCD=values_GCD, **arguments)

    heads_RND = arguments["qkv_RQ"].view(4, 10, 32)
    cos_RF, sin_RF = arguments["cos_sin_CD"][arguments["positions_R"].long()].chunk(2, dim=-1)
    q_HRD, k_GRD = apply_rotary_pos_emb(
        heads_RND[None, :, :6].transpose(1, 2),
        heads_RND[None, :, 6:8].transpose(1, 2),
        torch.cat([cos_RF, cos_RF], dim=-1)[None],
        torch.cat([sin_RF, sin_RF], dim=-1)[None],
    )
    torch.testing.assert_close(out.transpose(0, 1), q_HRD[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(keys_GCD[:, 20:24], k_GRD[0], rtol=1e-5, atol=1e-5)


def test_rows_beyond_the_capacity_are_not_written(device: str) -> None:
    arguments = case(3, heads=2, kv_heads=2, dim=32, dtype=torch.float32, device=device)
    keys_GCD, values_GCD = torch.zeros(2, 2, 22, 32, device=device)
    rope_kv_write(keys_GCD=keys_GCD, values_GCD=values_GCD, **arguments)
    assert keys_GCD[:, 20:].any(-1).all()  # rows 0 and 1
    assert not keys_GCD[:, :20].any()  # nor is row 2 at the start of the next head
    assert not values_GCD[:, :20].any()


def test_no_rows_are_no_launch(device: str) -> None:
    arguments = case(0, heads=2, kv_heads=1, dim=32, dtype=torch.float32, device=device)
    cache = torch.zeros(1, 8, 32, device=device)
    assert rope_kv_write(keys_GCD=cache, values_GCD=cache, **arguments).shape == (0, 2, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 5}, r"qkv_RQ has shape \(3, 256\); expected \(any, 288\): \(H \+ 2G\) D of keys_GCD"),
        ({"keys_GCD": torch.ones(2, 30, 24), "num_heads": 4, "qkv_RQ": torch.ones(3, 192)}, "supported: D one of 16"),
        ({"values_GCD": torch.ones(2, 30, 32).bfloat16()}, "values_GCD is torch.bfloat16; supported: torch.float32"),
        ({"values_GCD": torch.ones(2, 32, 30).mT}, "values_GCD has strides .*expected contiguous"),
        ({"positions_R": torch.ones(4).int()}, r"positions_R has shape \(4,\); expected \(3\): R of qkv_RQ"),
        ({"cos_sin_CD": torch.ones(30, 32).half()}, "cos_sin_CD is torch.float16; supported: torch.float32"),
        ({"lengths_2": torch.ones(2, device="meta").int()}, "lengths_2 is on meta; expected cpu, the device of qkv_RQ"),
        ({"q_norm_D": torch.ones(32)}, "q_norm_D and k_norm_D: one of them is None; expected both or neither"),
        ({"q_norm_D": torch.ones(32), "k_norm_D": torch.ones(16)}, r"k_norm_D has shape \(16,\); expected \(32\)"),
    ],
    ids=["columns", "dim", "dtype", "strides", "positions", "angles", "device", "one-norm", "norm"],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "qkv_RQ": torch.ones(3, 256),
        "cos_sin_CD": torch.ones(30, 32),
        "positions_R": torch.arange(3),
        "lengths_2": torch.tensor([4, 0], dtype=torch.int32),
        "keys_GCD": torch.ones(2, 30, 32),
        "values_GCD": torch.ones(2, 30, 32),
        "num_heads": 4,
    } | change
    with pytest.raises(ValueError, match=message):
        rope_kv_write(**arguments)


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    for compiled in compile_gate("rope_kv_write"):
        assert compiled.stack_bytes == 0
        assert compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.count(r"ld\.global\S*\.v4") >= 2  # both halves of a head
        assert compiled.count(r"st\.global\S*\.v4") >= 6  # into q, keys and values
        assert compiled.count(r"griddepcontrol\.wait") == 1
