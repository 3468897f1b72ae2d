"""Compaction of the cache after a verification: kept tree slots move to the end of the prefix, in all layers at once.

L layers, G key/value heads, C capacity, D head dimension, K slots at most. A program moves the slots of one plane
[C, D]; source and destination overlap within a plane only, and a plane's slots fit in its program's registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, check_dtype, check_layout, check_shape

MAX_SLOTS = 256
MAX_HEAD_DIM = 256


def keep_slots_reference(cache_L2GCD: Tensor, slots_K: Tensor, lengths_2: Tensor, num_verified: Tensor) -> None:
    """Tree slot slots_K[i] becomes tree slot i, for all that are not -1; the first `num_verified` join the prefix."""
    kept_K = slots_K >= 0
    targets_K = lengths_2[0] + torch.arange(len(slots_K), device=slots_K.device)
    sources_K = torch.where(kept_K, lengths_2[0] + slots_K, targets_K)
    cache_L2GCD.index_copy_(3, targets_K, cache_L2GCD.index_select(3, sources_K))
    num_verified = num_verified.view(())
    lengths_2[0] += num_verified
    lengths_2[1] = kept_K.sum() - num_verified


@triton.jit
def _keep_slots_kernel(
    cache, slots, lengths, num_verified, arrivals, num_slots, capacity,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """plane[prefix + i] <- plane[prefix + slots[i]] where slots[i] >= 0, all read before any is written.

    The last program to arrive updates the lengths, after all others have read them.
    """
    index_K = tl.arange(0, BLOCK_K)
    dims_D = tl.arange(0, BLOCK_D)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot_K = tl.load(slots + index_K, mask=index_K < num_slots, other=-1)
    prefix = tl.load(lengths)
    plane = cache + (tl.program_id(0).to(tl.int64) * capacity + prefix) * D
    # A slot already in its place is not moved, often all that are kept.
    moves_KD = ((slot_K >= 0) & (slot_K != index_K))[:, None] & (dims_D < D)[None, :]
    rows_KD = tl.load(plane + slot_K[:, None] * D + dims_D[None, :], mask=moves_KD)
    tl.debug_barrier()  # a thread may be about to overwrite what another one still has to read
    tl.store(plane + index_K[:, None] * D + dims_D[None, :], rows_KD, mask=moves_KD)
    if tl.atomic_add(arrivals, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        verified = tl.load(num_verified)
        tl.store(lengths, prefix + verified)
        tl.store(lengths + 1, tl.sum((slot_K >= 0).to(tl.int32), axis=0) - verified)


def keep_slots(
    cache_L2GCD: Tensor,
    slots_K: Tensor,
    lengths_2: Tensor,
    num_verified: Tensor,
    *,
    pdl: bool = False,
) -> None:
    """`keep_slots_reference` in one launch: changes the cache and `lengths_2` in place.

    A rotated key stays valid: a kept token's position is the same before and after.

    cache_L2GCD: fp32, fp16 or bf16, contiguous, as all tensors here: keys and values of all layers. D up to 256.
    slots_K: int32: distinct tree slots in their new order, then -1 up to K, which is at most 256. Read on the device,
        as are the lengths and `num_verified`, and therefore not checked.
    lengths_2: int32, (prefix, tree). The tree's previous length does not matter.
    num_verified: int32, one element: the number of kept slots that join the prefix.
    """
    check_shape("cache_L2GCD", cache_L2GCD, (None, 2, None, None, None))
    num_layers, _, num_kv_heads, capacity, head_dim = cache_L2GCD.shape
    if not 0 < head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"cache_L2GCD has shape {tuple(cache_L2GCD.shape)}; supported: D from 1 to {MAX_HEAD_DIM}")
    check_shape("slots_K", slots_K, (None,))
    if not 0 < len(slots_K) <= MAX_SLOTS:
        raise ValueError(f"slots_K has shape {tuple(slots_K.shape)}; supported: K from 1 to {MAX_SLOTS}")
    check_shape("lengths_2", lengths_2, (2,))
    check_shape("num_verified", num_verified, (1,) if num_verified.ndim else ())
    check_dtype(FLOATS, cache_L2GCD=cache_L2GCD)
    integers = {"slots_K": slots_K, "lengths_2": lengths_2, "num_verified": num_verified}
    check_dtype((torch.int32,), **integers)
    check_layout(cache_L2GCD=cache_L2GCD, **integers)
    block_k, block_d = triton.next_power_of_2(len(slots_K)), triton.next_power_of_2(head_dim)
    _keep_slots_kernel[(num_layers * 2 * num_kv_heads,)](
        cache_L2GCD,
        slots_K,
        lengths_2,
        num_verified,
        torch.zeros(1, dtype=torch.int32, device=cache_L2GCD.device),
        len(slots_K),
        capacity,
        D=head_dim,
        BLOCK_D=block_d,
        BLOCK_K=block_k,
        PDL=pdl,
        num_warps=min(16, max(4, block_k * block_d // 1024)),
        launch_pdl=pdl,
    )
