from collections.abc import Callable
from typing import Any

import pytest
import torch

from swiftspec.kernels.keep_slots import keep_slots
from swiftspec.kernels.verification_walk import verification_walk, verification_walk_reference
from tools.compiling import MAX_SHARED_BYTES, Compiled

INTEGERS = [torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("rows", [1, 8, 13, 64])
def test_matches_reference(rows: int, dtype: torch.dtype, device: str) -> None:
    lengths = set()
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        parents = [-1, *[int(torch.randint(max(0, i - 3), i, (), generator=generator)) for i in range(1, rows)]]
        tokens_R, choices_R = torch.randint(0, 2, (2, rows), generator=generator).to(device, dtype)
        parents_R = torch.tensor(parents, dtype=torch.int32, device=device)
        expected = verification_walk_reference(parents_R, tokens_R, choices_R)
        lengths.add(int(expected.num_verified))

        walk = verification_walk(parents_R, tokens_R, choices_R)

        assert all(torch.equal(actual, wanted) for actual, wanted in zip(walk, expected, strict=True))
    assert rows == 1 or len(lengths) > 1  # short walks and long ones were among them


@pytest.mark.parametrize(
    ("parents", "tokens", "choices", "path", "bonus"),
    [
        ([-1, 0, 1, 2], [5, 6, 7, 8], [6, 7, 8, 9], [0, 1, 2, 3], 9),
        ([-1, 0, 1, 2], [5, 6, 7, 8], [6, 0, 8, 9], [0, 1, -1, -1], 0),
        ([-1, 0, 0, 2], [5, 6, 7, 8], [7, 8, 8, 1], [0, 2, 3, -1], 1),
        ([-1, 0, 0, 1], [5, 6, 6, 8], [6, 8, 8, 1], [0, 1, 3, -1], 1),
        ([-1, 0, 1, 2], [6, 6, 6, 6], [5, 6, 6, 6], [0, -1, -1, -1], 5),
        ([-1, 2, 0, 1], [6, 6, 6, 6], [6, 6, 6, 6], [0, 2, -1, -1], 6),
        ([0, 0, 1, 0], [6, 6, 6, 6], [6, 6, 6, 6], [0, 1, 2, -1], 6),
    ],
    ids=[
        "all",
        "middle",
        "second-branch",
        "first-of-equal-siblings",
        "none",
        "parent-behind-its-child",
        "root-its-own-parent",
    ],
)
def test_path_by_hand(
    parents: list[int], tokens: list[int], choices: list[int], path: list[int], bonus: int, device: str
) -> None:
    rows = [torch.tensor(row, dtype=torch.int32, device=device) for row in (parents, tokens, choices)]
    walk = verification_walk(*rows)
    assert walk.path_R.tolist() == path
    assert walk.num_verified.item() == sum(row >= 0 for row in path)
    assert walk.bonus.item() == bonus


def test_answer_is_what_keep_slots_takes(device: str) -> None:
    parents, tokens, choices = ([-1, 0, 0, 2], [5, 6, 7, 8], [7, 8, 8, 1])
    rows = [torch.tensor(row, dtype=torch.int32, device=device) for row in (parents, tokens, choices)]
    cache = torch.arange(12.0, device=device).repeat(1, 2, 1, 1)[..., None].contiguous()
    lengths = torch.tensor([3, 4], dtype=torch.int32, device=device)
    walk = verification_walk(*rows)
    keep_slots(cache, walk.path_R, lengths, walk.num_verified)
    assert lengths.tolist() == [6, 0]
    assert cache[0, 0, 0, :6, 0].tolist() == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents_R": torch.zeros(65).int()}, r"parents_R has shape \(65,\); supported: R from 1 to 64"),
        ({"parents_R": torch.zeros(3).long()}, "parents_R is torch.int64; supported: torch.int32"),
        ({"tokens_R": torch.zeros(4).int()}, r"tokens_R has shape \(4,\); expected \(3\): R of parents_R"),
        ({"choices_R": torch.zeros(3)}, "choices_R is torch.float32; supported: torch.int32, torch.int64"),
        ({"choices_R": torch.zeros(6).int()[::2]}, "choices_R has strides .*expected contiguous"),
        ({"tokens_R": torch.zeros(3, device="meta").int()}, "tokens_R is on meta; expected cpu, where parents_R is"),
        ({"out": torch.zeros(3).int()}, r"out has shape \(3,\); expected \(5\): R \+ 2"),
    ],
    ids=["rows", "parents", "tokens", "choices", "strides", "device", "out"],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    row = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        verification_walk(**({"parents_R": row, "tokens_R": row, "choices_R": row} | change))


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    for compiled in compile_gate("verification_walk"):
        assert compiled.stack_bytes == 0
        assert compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.count(r"bar\.sync") == 0  # one warp: no step waits for another
        assert compiled.count(r"griddepcontrol\.wait") == 1
