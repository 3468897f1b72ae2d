"""The definitions that kernels are held to, against yet simpler ones: loops, and the other decoder's formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.gpu.ops import ops_for, reference_ops
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.rope import rotations
from tests.engine.shapes import small_spec

# R rows, H query heads, G key/value heads, D head dimension, C slots
H, G, D, C = 4, 2, 8, 40

ops = reference_ops()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lengths(prefix: int, tree: int) -> Tensor:
    return torch.tensor([prefix, tree], dtype=torch.int32)


def test_rms_norm_is_torchs_of_the_sum_which_replaces_the_residual() -> None:
    residual, update, weight = torch.randn(3, 5, 16, generator=generator()).unbind(0)
    total = residual + update
    out = ops.rms_norm(residual, update, weight[0], eps=1e-3)
    assert torch.equal(residual, total)
    torch.testing.assert_close(out, F.rms_norm(total, (16,), weight[0], eps=1e-3))
    torch.testing.assert_close(ops.rms_norm(residual, None, weight[0], eps=1e-3), out)


def test_gate_up_takes_the_gates_from_the_first_half() -> None:
    x, weight = torch.randn(3, 8, generator=generator()), torch.randn(12, 8, generator=generator(1))
    gate, up = x @ weight[:6].T, x @ weight[6:].T
    torch.testing.assert_close(ops.gate_up(x, weight), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("has_norms", [False, True], ids=["plain", "norms"])
def test_rope_turns_pairs_by_their_frequency_and_writes_behind_prefix_and_tree(has_norms: bool) -> None:
    num_rows, prefix, tree = 3, 7, 2
    qkv = torch.randn(num_rows, (H + 2 * G) * D, generator=generator())
    norms = torch.randn(2, D, generator=generator(1)) if has_norms else None
    turns = rotations(small_spec(head_dim=D), C).squeeze(1)
    positions = torch.tensor([7, 9, 8], dtype=torch.int32)
    keys, values = torch.zeros(2, G, C, D)
    queries = ops.rope_kv_write(
        qkv,
        torch.cat([turns.real, turns.imag], -1),
        positions,
        lengths(prefix, tree),
        keys,
        values,
        num_heads=H,
        q_norm_D=None if norms is None else norms[0],
        k_norm_D=None if norms is None else norms[1],
        eps=1e-3,
    )
    heads = qkv.view(num_rows, H + 2 * G, D)
    for row, position in enumerate(positions.tolist()):
        for index in range(H + G):
            head = heads[row, index]
            if norms is not None:
                head = F.rms_norm(head, (D,), norms[int(index >= H)], eps=1e-3)
            turned = torch.complex(head[: D // 2], head[D // 2 :]) * turns[position]
            actual = queries[row, index] if index < H else keys[index - H, prefix + tree + row]
            torch.testing.assert_close(actual, torch.cat([turned.real, turned.imag]))
        assert torch.equal(values[:, prefix + tree + row], heads[row, H + G :])
    written = torch.arange(C).sub(prefix + tree).abs_().lt(num_rows) & (torch.arange(C) >= prefix + tree)
    assert not keys[:, ~written].any()
    assert not values[:, ~written].any()


@pytest.mark.parametrize(("num_rows", "prefix", "tree"), [(1, 5, 0), (4, 0, 3), (7, 13, 5), (3, 2, 32)])
def test_attention_is_a_softmax_over_what_each_row_sees(num_rows: int, prefix: int, tree: int) -> None:
    q = torch.randn(num_rows, H, D, generator=generator())
    keys, values = torch.randn(2, G, C, D, generator=generator(1))
    visible = torch.randint(2, (num_rows, tree + num_rows), generator=generator(2)).bool()
    visible[:, tree:] |= torch.eye(num_rows, dtype=torch.bool)
    bits = F.pad(visible, (0, 64 - visible.shape[1])).view(num_rows, 2, 32)
    words = (bits * (2 ** torch.arange(32))).sum(-1).to(torch.int32)
    out = ops.tree_attention(q, keys, values, words, lengths(prefix, tree), scale=0.3, workspace=None)
    for row in range(num_rows):
        slots = [*range(prefix), *(prefix + slot for slot in visible[row].nonzero().flatten().tolist())]
        for head in range(H):
            group = head * G // H
            scores = torch.tensor([0.3 * float(q[row, head] @ keys[group, slot]) for slot in slots])
            torch.testing.assert_close(out[row, head], scores.softmax(0) @ values[group, slots])


def test_slots_behind_the_words_are_seen_by_nobody() -> None:
    """A forward's rows that fill up its capture size may lie there."""
    q, words = torch.randn(9, H, D, generator=generator()), torch.full((9, 1), -1, dtype=torch.int32)
    keys, values = torch.randn(2, G, C, D, generator=generator(1))
    expected = ops.tree_attention(q[:2], keys, values, words[:2], lengths(0, 30), scale=1.0, workspace=None)
    actual = ops.tree_attention(q, keys, values, words, lengths(0, 30), scale=1.0, workspace=None)
    torch.testing.assert_close(actual[:2], expected)


@pytest.mark.parametrize(("slots", "num_verified"), [((4, 0, 2), 1), ((0, 1, 4, 3), 4), ((), 0), ((1,), 0)])
def test_keep_slots_moves_as_the_cache_does(slots: tuple[int, ...], num_verified: int) -> None:
    cache = KVCache(small_spec(), capacity=30, dtype=torch.float32)
    cache.data[:] = torch.randn(cache.data.shape, generator=generator())
    moved = cache.data.clone()
    cache.extend_prefix(3)
    cache.extend_tree(5)
    cache.keep(slots, num_verified)
    padded = torch.tensor([*slots, *[-1] * (6 - len(slots))], dtype=torch.int32)
    ops.keep_slots(moved, padded, lengths(3, 5)[:1])
    assert torch.equal(moved, cache.data)


def test_top_candidates_are_likeliest_first_in_log_probs() -> None:
    logprobs, tokens = ops.top_candidates(torch.tensor([[0.0, math.log(3.0), math.log(6.0)]]), 2)
    assert tokens.tolist() == [[2, 1]]
    assert (logprobs.dtype, tokens.dtype) == (torch.float32, torch.int32)
    torch.testing.assert_close(logprobs.exp(), torch.tensor([[0.6, 0.3]]))


class _Doubled:
    """A weight of half the size that it stands for."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._weight.shape)

    def dequantise(self) -> Tensor:
        return 2.0 * self._weight


@pytest.mark.parametrize(("wanted", "expected"), [(None, True), ("1", True), ("0", False)])
def test_launches_overlap_on_hopper_unless_they_are_told_not_to(
    wanted: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("swiftspec.engine.model.gpu.ops.triton_ops", lambda *, pdl: asked.append(pdl))
    monkeypatch.delenv("SWIFTSPEC_PDL", raising=False)
    if wanted is not None:
        monkeypatch.setenv("SWIFTSPEC_PDL", wanted)
    ops_for(torch.device("cuda"))
    assert asked == [expected]
    monkeypatch.setenv("SWIFTSPEC_PDL", "off")
    with pytest.raises(ValueError, match="SWIFTSPEC_PDL is 'off'; expected 0 or 1"):
        ops_for(torch.device("cuda"))


def test_a_quantised_weight_is_multiplied_as_what_it_stands_for() -> None:
    x, weight = torch.randn(3, 8, generator=generator()), torch.randn(4, 8, generator=generator(1))
    torch.testing.assert_close(ops.quantised_gemm(x, _Doubled(weight)), 2.0 * x @ weight.T)
    torch.testing.assert_close(ops.quantised_gemm(x, _Doubled(weight), gated=True), ops.gate_up(x, 2.0 * weight))
