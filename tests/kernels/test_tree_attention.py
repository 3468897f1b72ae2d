import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from swiftspec.kernels.tree_attention import tree_attention, tree_attention_reference, tree_attention_workspace
from tools.compiling import MAX_SHARED_BYTES, Compiled

# Under the interpreter a store to bf16 truncates, weights included.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def masks(parents: list[int]) -> Tensor:
    """int32 words of every node, as many as the tree needs: its ancestors and itself."""
    words: list[int] = []
    for node, parent in enumerate(parents):
        words.append((words[parent] if parent >= 0 else 0) | 1 << node)
    num_words = -(-len(parents) // 32)
    split = [[word >> (32 * index) & 0xFFFFFFFF for index in range(num_words)] for word in words]
    return torch.tensor(split, dtype=torch.int64).to(torch.int32)  # wraps: the top bit is the sign


def case(
    rows: int,
    *,
    prefix: int,
    tree: int = 0,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 32,
    capacity: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> dict[str, Any]:
    """A random tree of `tree` older nodes and `rows` new ones after a prefix; slots beyond hold NaN."""
    generator = torch.Generator().manual_seed(1000 * rows + prefix + tree)
    end = prefix + tree + rows
    q_RHD = torch.randn(rows, heads, dim, generator=generator)
    cache_2GCD = torch.full((2, kv_heads, max(capacity, end + 7), dim), math.nan)
    cache_2GCD[:, :, :end] = torch.randn(2, kv_heads, end, dim, generator=generator)
    parents = [-1, *[int(torch.randint(max(0, i - 5), i, (), generator=generator)) for i in range(1, tree + rows)]]
    return {
        "q_RHD": q_RHD.to(device, dtype),
        "keys_GCD": cache_2GCD[0].to(device, dtype),
        "values_GCD": cache_2GCD[1].to(device, dtype),
        "ancestors_RW": masks(parents)[tree:].to(device),
        "lengths_2": torch.tensor([prefix, tree], dtype=torch.int32, device=device),
        "scale": dim**-0.5,
    }


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (8, {"prefix": 512, "heads": 8, "dim": 64}),
        (13, {"prefix": 717, "tree": 9, "heads": 6, "dim": 32}),
    ],
    ids=["8-rows", "13-rows"],
)
def test_matches_reference(rows: int, shape: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    arguments = case(rows, dtype=dtype, device=device, **shape)
    out = tree_attention(**arguments, num_splits=3)
    expected = tree_attention_reference(**arguments)
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (1, {"prefix": 0}),
        (1, {"prefix": 63, "dim": 128}),
        (5, {"prefix": 64, "dim": 16, "heads": 2}),
        (13, {"prefix": 0, "tree": 20}),
        (13, {"prefix": 100, "tree": 51, "heads": 3, "kv_heads": 3}),
        (64, {"prefix": 37, "heads": 8, "kv_heads": 1}),
        (33, {"prefix": 600, "tree": 31}),
        (8, {"prefix": 75, "tree": 150}),  # six words, and three masked blocks
        (13, {"prefix": 250}),  # a second split holds nothing that the first rows see
    ],
    ids=lambda value: "-".join(f"{key}{size}" for key, size in value.items()) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("num_splits", [1, 5])
def test_matches_torch_with_a_mask(rows: int, shape: dict[str, Any], num_splits: int, device: str) -> None:
    arguments = case(rows, device=device, **shape)
    end = shape["prefix"] + shape.get("tree", 0) + rows
    words_RW = arguments["ancestors_RW"].cpu().tolist()
    mask_RC = torch.ones(rows, end, dtype=torch.bool)
    for row, words in enumerate(words_RW):
        word = sum((part & 0xFFFFFFFF) << (32 * index) for index, part in enumerate(words))
        for slot in range(shape["prefix"], end):
            mask_RC[row, slot] = bool(word >> (slot - shape["prefix"]) & 1)

    out = tree_attention(**arguments, num_splits=num_splits)

    expected_HRD = scaled_dot_product_attention(
        arguments["q_RHD"].transpose(0, 1),
        arguments["keys_GCD"][:, :end],
        arguments["values_GCD"][:, :end],
        attn_mask=mask_RC.to(device),
        enable_gqa=True,
    )
    torch.testing.assert_close(out, expected_HRD.transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_rows_that_fill_up_a_capture_size_are_seen_by_nobody(device: str) -> None:
    exact = case(9, prefix=100, tree=50, capacity=192, device=device)
    fill = torch.tensor([*range(9), *([8] * 7)], device=device)  # copies of the last row: the tree ends at slot 66
    filled = exact | {name: exact[name][fill].contiguous() for name in ("q_RHD", "ancestors_RW")}
    filled |= {name: exact[name].nan_to_num(3.0) for name in ("keys_GCD", "values_GCD")}  # they were written, too
    torch.testing.assert_close(tree_attention(**filled)[:9], tree_attention(**exact), rtol=1e-5, atol=1e-5)


def test_workspace_serves_any_number_of_rows_again_and_again(device: str) -> None:
    sizes = [64, 1, 13]
    dtype = torch.float16
    cases = [case(rows, prefix=600, heads=4, kv_heads=1, capacity=1024, dtype=dtype, device=device) for rows in sizes]
    workspace = tree_attention_workspace(64, 4, cases[0]["keys_GCD"], num_splits=3)
    for arguments in cases * 2:
        out = tree_attention(**arguments, num_splits=3, workspace=workspace)
        expected = tree_attention_reference(**arguments)
        torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_split_answers_are_the_same_every_time(device: str) -> None:
    arguments = case(8, prefix=1500, device=device)
    first, second = (tree_attention(**arguments, num_splits=6) for _ in range(2))
    assert torch.equal(first, second)


def test_lengths_are_read_on_the_device(device: str) -> None:
    arguments = case(4, prefix=300, tree=3, device=device)
    shorter = arguments | {
        "lengths_2": arguments["lengths_2"] - torch.tensor([20, 0], dtype=torch.int32, device=device)
    }
    out, expected = tree_attention(**shorter), tree_attention_reference(**shorter)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_RHD": torch.ones(65, 4, 32)}, r"q_RHD has shape \(65, 4, 32\); supported: R from 1 to 64"),
        ({"q_RHD": torch.ones(3, 4, 48)}, r"supported: .* D one of 16, 32, 64, 128"),
        ({"q_RHD": torch.ones(3, 5, 32)}, "for 5 query heads; supported: 1 to 8 query heads per key/value head"),
        ({"values_GCD": torch.ones(2, 9, 32)}, r"values_GCD has shape \(2, 9, 32\); expected"),
        ({"values_GCD": torch.ones(2, 10, 32).half()}, "values_GCD is torch.float16; supported: torch.float32"),
        ({"ancestors_RW": torch.ones(2, 2).int()}, r"ancestors_RW has shape \(2, 2\); expected \(3, any\)"),
        ({"ancestors_RW": torch.ones(3, 9).int()}, r"ancestors_RW has shape \(3, 9\); supported: W from 1 to 8"),
        ({"lengths_2": torch.ones(2).long()}, "lengths_2 is torch.int64; supported: torch.int32"),
        ({"keys_GCD": torch.ones(2, 32, 10).mT}, "keys_GCD has strides .*expected contiguous"),
        ({"keys_GCD": torch.ones(2, 10, 32, device="meta")}, "keys_GCD is on meta; expected cpu, the device of q_RHD"),
        ({"num_splits": 0}, "num_splits is 0; expected at least 1"),
        ({"workspace": torch.zeros(1)}, r"workspace has shape \(1,\); expected at least \(64\)"),
    ],
    ids=[
        "rows",
        "dim",
        "group",
        "values",
        "dtype",
        "masks",
        "words",
        "integers",
        "strides",
        "device",
        "splits",
        "workspace",
    ],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "q_RHD": torch.ones(3, 4, 32),
        "keys_GCD": torch.ones(2, 10, 32),
        "values_GCD": torch.ones(2, 10, 32),
        "ancestors_RW": torch.ones(3, 2, dtype=torch.int32),
        "lengths_2": torch.tensor([4, 0], dtype=torch.int32),
    } | change
    with pytest.raises(ValueError, match=message):
        tree_attention(**arguments, scale=1.0)


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    gate = compile_gate("tree_attention")
    assert [compiled.count(r"mma\.sync\S*bf16") > 0 for compiled in gate] == [True, True, False]  # fp32 has none
    for compiled in gate:
        assert compiled.stack_bytes == 0
        assert 2 * compiled.shared_bytes <= MAX_SHARED_BYTES  # two programs share a multiprocessor
        assert compiled.registers <= 65536 // (2 * 128)
        assert compiled.count(r"ld\.global\S*\.v4") >= 1
        assert compiled.count(r"cp\.async\.cg\S* \[[^]]*\], \[[^]]*\], 0x10") >= 32  # 16 bytes each
        assert compiled.count(r"st\.global\.cg\.v4") >= 1
        assert compiled.count(r"griddepcontrol\.wait") == 1
        assert compiled.count(r"atom\.global\.gpu\.acq_rel\.add") == 1
