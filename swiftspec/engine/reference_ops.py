"""What the kernels of a forward compute, in plain torch on any device: what runs without kernels, and their oracle.

R rows, H query heads, G key/value heads, J = H / G, D head dimension, C slots of the cache, W words, T = 32 * W tree
slots that a row's words can name, N x K a weight, V vocabulary.

Lengths are read on the device and nothing waits for it, so that a forward of these can be captured in a CUDA graph.
Everything is computed in fp32 and rounded once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.weights import Quantised

__all__ = [
    "gate_up",
    "keep_slots",
    "linear",
    "quantised_gemm",
    "rms_norm",
    "rope_kv_write",
    "top_candidates",
    "tree_attention",
]

WORD_BITS = 32


def rms_norm(residual_RH: Tensor, update_RH: Tensor | None, weight_H: Tensor, *, eps: float) -> Tensor:
    """s / sqrt(mean(s^2) + eps) * weight with s = residual + update, which replaces the residual."""
    if update_RH is not None:
        residual_RH.add_(update_RH)
    total = residual_RH.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return (total * scale * weight_H.float()).to(weight_H.dtype)


def linear(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """x W^T, (R, N)."""
    return F.linear(x_RK, weight_NK)


def quantised_gemm(x_RK: Tensor, weight: Quantised, *, gated: bool = False) -> Tensor:
    """`linear`, or `gate_up` where `gated`, with the numbers that `weight` stands for."""
    product = gate_up if gated else linear
    return product(x_RK, weight.dequantise().to(x_RK.dtype))


def gate_up(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """silu(x gate^T) * (x up^T), (R, N / 2); all gate rows come first."""
    gate, up = F.linear(x_RK, weight_NK).float().chunk(2, -1)
    return (F.silu(gate) * up).to(x_RK.dtype)


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
) -> Tensor:
    """Queries (R, H, D), rotated; rotated keys and values go to the slots behind prefix and tree.

    Parameters
    ----------
    qkv_RQ : Tensor
        [R, (H + 2 G) D]: query, key and value heads.
    cos_sin_CD : Tensor
        fp32: cosines of position times each of the D/2 frequencies, then the sines. Dimensions i and i + D/2 rotate
        together.
    lengths_2 : Tensor
        int32: prefix and tree without these rows.
    q_norm_D, k_norm_D : Tensor, optional
        Weights of an RMSNorm per head, before the rotation; with it `eps`.
    """
    num_groups, _, size = keys_GCD.shape
    heads = qkv_RQ.view(qkv_RQ.shape[0], num_heads + 2 * num_groups, size).float()
    queries, keys, values = heads.split((num_heads, num_groups, num_groups), dim=1)
    cos, sin = cos_sin_CD.index_select(0, positions_R).unsqueeze(1).chunk(2, -1)
    queries = _rotated(_normalised(queries, q_norm_D, eps), cos, sin)
    keys = _rotated(_normalised(keys, k_norm_D, eps), cos, sin)
    slots = lengths_2.sum() + torch.arange(qkv_RQ.shape[0], device=qkv_RQ.device)
    keys_GCD.index_copy_(1, slots, keys.transpose(0, 1).to(keys_GCD.dtype))
    values_GCD.index_copy_(1, slots, values.transpose(0, 1).to(values_GCD.dtype))
    return queries.to(qkv_RQ.dtype)


def _normalised(heads: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
    if weight_D is None:
        return heads
    scale = torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    return heads * scale * weight_D.float()


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def tree_attention(
    q_RHD: Tensor,
    keys_GCD: Tensor,
    values_GCD: Tensor,
    ancestors_RW: Tensor,
    lengths_2: Tensor,
    *,
    scale: float,
    workspace: Tensor | None = None,  # noqa: ARG001 (a kernel's)
) -> Tensor:
    """softmax(scale * q k^T, over the prefix and the tree slots that a row names) v, (R, H, D).

    Bit s % 32 of word s // 32 of `ancestors_RW` makes tree slot s visible. `lengths_2` is without these R rows, whose
    keys and values are already in the cache.
    """
    num_rows, num_heads, size = q_RHD.shape
    num_groups, capacity, _ = keys_GCD.shape
    visible_RC = _visible(ancestors_RW, lengths_2, num_rows=num_rows, capacity=capacity)
    q_GRJD = q_RHD.view(num_rows, num_groups, num_heads // num_groups, size).transpose(0, 1).float()
    scores = torch.einsum("grjd,gcd->grjc", q_GRJD, keys_GCD.float()) * scale
    shares = scores.masked_fill(~visible_RC[:, None], -torch.inf).softmax(-1)
    mixed = torch.einsum("grjc,gcd->grjd", shares, values_GCD.float())
    return mixed.transpose(0, 1).reshape(num_rows, num_heads, size).to(q_RHD.dtype)


def _visible(ancestors_RW: Tensor, lengths_2: Tensor, *, num_rows: int, capacity: int) -> Tensor:
    """bool [R, C]."""
    prefix, tree = lengths_2
    slots_C = torch.arange(capacity, device=lengths_2.device)
    named_C = slots_C - prefix
    shifts = torch.arange(WORD_BITS, device=lengths_2.device, dtype=torch.int32)
    bits_RT = (ancestors_RW[:, :, None] >> shifts & 1).bool().flatten(1)
    num_named = bits_RT.shape[1]
    in_tree_C = (named_C >= 0) & (named_C < (tree + num_rows).clamp(max=num_named))
    named = bits_RT.index_select(1, named_C.clamp(0, num_named - 1))
    visible: Tensor = (slots_C < prefix) | (in_tree_C & named)
    return visible


def keep_slots(cache: Tensor, slots_K: Tensor, lengths_2: Tensor, num_verified: Tensor) -> None:
    """Tree slots `slots_K`, in this order, become those behind the prefix, and `num_verified` of them its end.

    Parameters
    ----------
    cache : Tensor
        [layers, 2, G, C, D].
    slots_K : Tensor
        int32, padded with -1; prefix + K slots are in the cache.
    lengths_2 : Tensor
        int32: prefix and tree, updated.
    num_verified : Tensor
        int32, one number.
    """
    kept_K = slots_K >= 0
    targets = lengths_2[0] + torch.arange(slots_K.shape[0], device=slots_K.device)
    sources = torch.where(kept_K, lengths_2[0] + slots_K, targets)
    cache.index_copy_(3, targets, cache.index_select(3, sources))
    lengths_2[0] += num_verified
    lengths_2[1] = kept_K.sum() - num_verified


def top_candidates(logits_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Log-probs (fp32) and tokens (int32) of each row's `k` likeliest tokens, likeliest first, (R, k)."""
    best = torch.log_softmax(logits_RV.float(), dim=-1).topk(k, dim=-1)
    return best.values, best.indices.int()
