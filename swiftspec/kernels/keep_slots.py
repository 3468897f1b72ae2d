"""Compaction of the cache after a verification: kept tree slots move to the start of the tree, in all layers at once.

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


def keep_slots_reference(cache_L2GCD: Tensor, slots_K: Tensor, prefix_1: Tensor) -> None:
    """Tree slot slots_K[i] becomes tree slot i, for all that are not -1."""
    targets_K = prefix_1 + torch.arange(len(slots_K), device=slots_K.device)
    sources_K = torch.where(slots_K >= 0, prefix_1 + slots_K, targets_K)
    cache_L2GCD.index_copy_(3, targets_K, cache_L2GCD.index_select(3, sources_K))


@triton.jit
def _keep_slots_kernel(
    cache, slots, prefix, num_slots, capacity,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """plane[prefix + i] <- plane[prefix + slots[i]] where slots[i] >= 0, all read before any is written."""
    index_K = tl.arange(0, BLOCK_K)
    dims_D = tl.arange(0, BLOCK_D)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot_K = tl.load(slots + index_K, mask=index_K < num_slots, other=-1)
    plane = cache + (tl.program_id(0).to(tl.int64) * capacity + tl.load(prefix)) * D
    # A slot already in its place is not moved, often all that are kept.
    moves_KD = ((slot_K >= 0) & (slot_K != index_K))[:, None] & (dims_D < D)[None, :]
    rows_KD = tl.load(plane + slot_K[:, None] * D + dims_D[None, :], mask=moves_KD)
    tl.debug_barrier()  # a thread may be about to overwrite what another one still has to read
    tl.store(plane + index_K[:, None] * D + dims_D[None, :], rows_KD, mask=moves_KD)


def keep_slots(cache_L2GCD: Tensor, slots_K: Tensor, prefix_1: Tensor, *, pdl: bool = False) -> None:
    """`keep_slots_reference` in one launch: changes the cache in place.

    A rotated key stays valid: a kept token's position is the same before and after.

    cache_L2GCD: fp32, fp16 or bf16, contiguous, as all tensors here: keys and values of all layers. D up to 256.
    slots_K: int32: distinct tree slots in their new order, then -1 up to K, which is at most 256. Read on the device,
        as is the prefix's length, and therefore not checked.
    prefix_1: int32, the prefix's length.
    """
    check_shape("cache_L2GCD", cache_L2GCD, (None, 2, None, None, None))
    num_layers, _, num_kv_heads, capacity, head_dim = cache_L2GCD.shape
    if not 0 < head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"cache_L2GCD has shape {tuple(cache_L2GCD.shape)}; supported: D from 1 to {MAX_HEAD_DIM}")
    check_shape("slots_K", slots_K, (None,))
    if not 0 < len(slots_K) <= MAX_SLOTS:
        raise ValueError(f"slots_K has shape {tuple(slots_K.shape)}; supported: K from 1 to {MAX_SLOTS}")
    check_shape("prefix_1", prefix_1, (1,))
    check_dtype(FLOATS, cache_L2GCD=cache_L2GCD)
    check_dtype((torch.int32,), slots_K=slots_K, prefix_1=prefix_1)
    check_layout(cache_L2GCD=cache_L2GCD, slots_K=slots_K, prefix_1=prefix_1)
    block_k, block_d = triton.next_power_of_2(len(slots_K)), triton.next_power_of_2(head_dim)
    _keep_slots_kernel[(num_layers * 2 * num_kv_heads,)](
        cache_L2GCD,
        slots_K,
        prefix_1,
        len(slots_K),
        capacity,
        D=head_dim,
        BLOCK_D=block_d,
        BLOCK_K=block_k,
        PDL=pdl,
        num_warps=min(16, max(4, block_k * block_d // 1024)),
        launch_pdl=pdl,
    )
