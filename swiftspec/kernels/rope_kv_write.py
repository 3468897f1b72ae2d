"""Between the QKV projection and attention: head norms, rotation, and keys and values written to their slots.

R rows, H query heads, G key/value heads, Q = (H + 2G) D columns of the projection (queries, keys, values), C capacity,
D head dimension, F = D / 2 rotated pairs, B heads of one program. A pair is dimensions i and i + F, as in Hugging
Face's Llama. Latency-bound: little data, so all independent loads are issued first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, check_dtype, check_layout, check_shape

HEAD_DIMS = (16, 32, 64, 128, 256)
TILE = 512  # elements of one warp: 16, so that a lane's halves are 16 bytes each in fp16 and bf16


def rope_kv_write_reference(
    qkv_RQ: Tensor,
    cos_sin_CD: Tensor,
    positions_R: Tensor,
    lengths_2: Tensor,
    keys_GCD: Tensor,
    values_GCD: Tensor,
    *,
    num_heads: int,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotated queries (R, H, D); rotated keys, and values, go to slots prefix + tree + (0 to R - 1) of the caches."""
    num_kv_heads, _, head_dim = keys_GCD.shape
    heads_RND = qkv_RQ.view(len(qkv_RQ), -1, head_dim)
    q_RHD, k_RGD, v_RGD = heads_RND.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    cos_R1F, sin_R1F = cos_sin_CD[positions_R.long(), None].chunk(2, dim=-1)

    def rotated(heads_RND: Tensor, norm_D: Tensor | None) -> Tensor:
        x_RND = heads_RND.float()
        if norm_D is not None:
            x_RND = x_RND * torch.rsqrt(x_RND.square().mean(-1, keepdim=True) + eps) * norm_D.float()
        low_RNF, high_RNF = x_RND.chunk(2, dim=-1)
        turned = (low_RNF * cos_R1F - high_RNF * sin_R1F, high_RNF * cos_R1F + low_RNF * sin_R1F)
        return torch.cat(turned, dim=-1).to(heads_RND.dtype)

    slots_R = lengths_2.sum() + torch.arange(len(qkv_RQ), device=qkv_RQ.device)
    keys_GCD.index_copy_(1, slots_R, rotated(k_RGD, k_norm_D).transpose(0, 1))
    values_GCD.index_copy_(1, slots_R, v_RGD.transpose(0, 1))
    return rotated(q_RHD, q_norm_D)


@triton.jit
def _rope_kv_write_kernel(
    qkv, cos_sin, positions, lengths, keys, values, q_norm, k_norm, out,
    capacity, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
    HAS_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """(x_i, x_j) -> (x_i cos - x_j sin, x_j cos + x_i sin), j = i + D / 2, for BLOCK_H heads of row program_id(0).

    With norms x is first multiplied by rsqrt(mean(x^2) + eps) norm. Heads are queries, keys, values; values only move.
    """
    row = tl.program_id(0)
    head_B = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims_F = tl.arange(0, D // 2)
    is_query_B = head_B < NUM_HEADS
    is_key_B = (head_B >= NUM_HEADS) & (head_B < NUM_HEADS + NUM_KV_HEADS)
    is_head_B = head_B < NUM_HEADS + 2 * NUM_KV_HEADS
    is_value_B = (head_B >= NUM_HEADS + NUM_KV_HEADS) & is_head_B
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    position = tl.load(positions + row).to(tl.int64)
    slot = tl.load(lengths) + tl.load(lengths + 1) + row
    offsets = (row * (NUM_HEADS + 2 * NUM_KV_HEADS) + head_B)[:, None] * D + dims_F[None, :]
    low_BF = tl.load(qkv + offsets, mask=is_head_B[:, None], other=0.0)
    high_BF = tl.load(qkv + offsets + D // 2, mask=is_head_B[:, None], other=0.0)
    cos_F = tl.load(cos_sin + position * D + dims_F)
    sin_F = tl.load(cos_sin + position * D + D // 2 + dims_F)

    x_BF = low_BF.to(tl.float32)
    y_BF = high_BF.to(tl.float32)
    if HAS_NORM:
        scale_B = tl.rsqrt((tl.sum(x_BF * x_BF, axis=1) + tl.sum(y_BF * y_BF, axis=1)) / D + eps)
        x_BF *= scale_B[:, None] * _norm_weight(q_norm, k_norm, dims_F, is_query_B)
        y_BF *= scale_B[:, None] * _norm_weight(q_norm, k_norm, dims_F + D // 2, is_query_B)
    new_low_BF = tl.where(is_value_B[:, None], low_BF, (x_BF * cos_F - y_BF * sin_F).to(low_BF.dtype))
    new_high_BF = tl.where(is_value_B[:, None], high_BF, (y_BF * cos_F + x_BF * sin_F).to(low_BF.dtype))

    queries = out + (row * NUM_HEADS + head_B)[:, None] * D + dims_F[None, :]
    tl.store(queries, new_low_BF, mask=is_query_B[:, None])
    tl.store(queries + D // 2, new_high_BF, mask=is_query_B[:, None])
    # The length comes from the device: a row that does not fit must not be written into the next head.
    if slot < capacity:
        kv_head_B = tl.where(is_value_B, head_B - NUM_KV_HEADS, head_B) - NUM_HEADS
        places = (kv_head_B.to(tl.int64) * capacity + slot)[:, None] * D + dims_F[None, :]
        tl.store(keys + places, new_low_BF, mask=is_key_B[:, None])
        tl.store(keys + places + D // 2, new_high_BF, mask=is_key_B[:, None])
        tl.store(values + places, new_low_BF, mask=is_value_B[:, None])
        tl.store(values + places + D // 2, new_high_BF, mask=is_value_B[:, None])


@triton.jit
def _norm_weight(q_norm, k_norm, dims_F, is_query_B):
    """Weights [B, F] of each head's own norm."""
    q_weight_F = tl.load(q_norm + dims_F).to(tl.float32)
    k_weight_F = tl.load(k_norm + dims_F).to(tl.float32)
    return tl.where(is_query_B[:, None], q_weight_F[None, :], k_weight_F[None, :])


def rope_kv_write(
    qkv_RQ: Tensor,
    cos_sin_CD: Tensor,
    positions_R: Tensor,
    lengths_2: Tensor,
    keys_GCD: Tensor,
    values_GCD: Tensor,
    *,
    num_heads: int,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 0.0,
    pdl: bool = False,
) -> Tensor:
    """`rope_kv_write_reference` in one launch: returns the queries, (R, H, D), and writes keys and values.

    qkv_RQ: fp32, fp16 or bf16, contiguous, as all tensors here.
    cos_sin_CD: fp32: per position the cosines of D / 2 angles, then the sines. Positions beyond it are not checked.
    positions_R: int32 or int64.
    lengths_2: int32, (prefix, tree) before these rows; not changed. Rows beyond the capacity are not written.
    keys_GCD, values_GCD: cache of one layer, dtype of qkv.
    num_heads: H.
    q_norm_D, k_norm_D: both or neither: weights of an RMSNorm of every head before its rotation, with `eps`.
    """
    check_shape("keys_GCD", keys_GCD, (None, None, None))
    num_kv_heads, capacity, head_dim = keys_GCD.shape
    check_shape("qkv_RQ", qkv_RQ, (None, (num_heads + 2 * num_kv_heads) * head_dim), why="(H + 2G) D of keys_GCD")
    num_rows = qkv_RQ.shape[0]
    _check(qkv_RQ, cos_sin_CD, positions_R, lengths_2, keys_GCD, values_GCD)
    out = torch.empty(num_rows, num_heads, head_dim, dtype=qkv_RQ.dtype, device=qkv_RQ.device)
    if (q_norm_D is None) != (k_norm_D is None):
        raise ValueError("q_norm_D and k_norm_D: one of them is None; expected both or neither")
    for name, norm_D in (("q_norm_D", q_norm_D), ("k_norm_D", k_norm_D)):
        if norm_D is not None:
            check_shape(name, norm_D, (head_dim,), why="D of keys_GCD")
            check_dtype(FLOATS, **{name: norm_D})
            check_layout(qkv_RQ=qkv_RQ, **{name: norm_D})
    if num_rows:
        block = max(1, TILE // head_dim)
        blocks = triton.cdiv(num_heads + 2 * num_kv_heads, block)
        _rope_kv_write_kernel[(num_rows, blocks)](
            qkv_RQ,
            cos_sin_CD,
            positions_R,
            lengths_2,
            keys_GCD,
            values_GCD,
            cos_sin_CD if q_norm_D is None else q_norm_D,
            cos_sin_CD if k_norm_D is None else k_norm_D,
            out,
            capacity,
            eps,
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            D=head_dim,
            BLOCK_H=block,
            HAS_NORM=q_norm_D is not None,
            PDL=pdl,
            num_warps=1,
            launch_pdl=pdl,
        )
    return out


def _check(
    qkv_RQ: Tensor, cos_sin_CD: Tensor, positions_R: Tensor, lengths_2: Tensor, keys_GCD: Tensor, values_GCD: Tensor
) -> None:
    head_dim = keys_GCD.shape[2]
    if head_dim not in HEAD_DIMS:
        raise ValueError(
            f"keys_GCD has shape {tuple(keys_GCD.shape)}; supported: D one of {', '.join(map(str, HEAD_DIMS))}"
        )
    check_shape("values_GCD", values_GCD, tuple(keys_GCD.shape), why="that of keys_GCD")
    check_shape("cos_sin_CD", cos_sin_CD, (None, head_dim), why="D of keys_GCD")
    check_shape("positions_R", positions_R, (qkv_RQ.shape[0],), why="R of qkv_RQ")
    check_shape("lengths_2", lengths_2, (2,))
    check_dtype(FLOATS, qkv_RQ=qkv_RQ)
    like_qkv = {"keys_GCD": keys_GCD, "values_GCD": values_GCD}
    check_dtype((qkv_RQ.dtype,), **like_qkv)
    check_dtype((torch.float32,), cos_sin_CD=cos_sin_CD)
    check_dtype((torch.int32, torch.int64), positions_R=positions_R)
    check_dtype((torch.int32,), lengths_2=lengths_2)
    others = {"cos_sin_CD": cos_sin_CD, "positions_R": positions_R, "lengths_2": lengths_2}
    check_layout(qkv_RQ=qkv_RQ, **like_qkv, **others)
