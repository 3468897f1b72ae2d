"""Attention of a tree's rows to the prefix and to their ancestors, split over the keys.

R rows, H query heads, G key/value heads, J = H / G query heads per key/value head, C capacity, D head dimension,
W words of a mask. Slots are [prefix | tree]. A program owns Q queries of one key/value head (query = row * J + head in
group, so that a group reads its keys once), and one run of B-slot blocks; S splits are the runs.

Only blocks that reach beyond the prefix are masked: in those, rows see different slots; before them all see the same.
The split that arrives last merges all of them in their order, so the result does not depend on the order of arrival.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, INTERPRETED, check_dtype, check_layout, check_shape, dot

HEAD_DIMS = (16, 32, 64, 128)
MAX_GROUP = 8
MAX_ROWS = 64
MAX_WORDS = 8  # of a mask: 256 tree slots
WORD_BITS = 32

BLOCK = 64  # slots; with 16-bit keys of 128 a block is 32 KB, and two more are in flight
BLOCKS_Q = (16, 32)  # queries
MIN_BLOCKS = 4  # per split: with 1 or 2 a kernel alone is up to 16 % faster, and a forward 2 to 5 % slower (H100)
NUM_SMS = 132  # H100 and H200; a constant, since the result must not depend on what else runs
MAX_MERGE_BYTES = 256 * 1024  # of partial results: one program reads them all


def tree_attention_reference(
    q_RHD: Tensor, keys_GCD: Tensor, values_GCD: Tensor, ancestors_RW: Tensor, lengths_2: Tensor, *, scale: float
) -> Tensor:
    """softmax(scale q k^T over visible slots) v in fp32; visible: the prefix, and tree slots whose bit is set.

    Any number of words. Lengths stay on the device, so that a CUDA graph can capture it.
    """
    num_rows, num_heads, size = q_RHD.shape
    num_groups, capacity, _ = keys_GCD.shape
    visible_RC = _visible(ancestors_RW, lengths_2, num_rows=num_rows, capacity=capacity)
    q_GRJD = q_RHD.view(num_rows, num_groups, num_heads // num_groups, size).transpose(0, 1).float()
    scores_GRJC = torch.einsum("grjd,gcd->grjc", q_GRJD, keys_GCD.float()) * scale
    shares_GRJC = scores_GRJC.masked_fill(~visible_RC[:, None], -math.inf).softmax(-1)
    # Unseen slots may hold anything, and not-a-number times a share of zero is not zero.
    values = values_GCD.float().masked_fill(~visible_RC.any(0)[:, None], 0.0)
    mixed_GRJD = torch.einsum("grjc,gcd->grjd", shares_GRJC, values)
    return mixed_GRJD.transpose(0, 1).reshape(num_rows, num_heads, size).to(q_RHD.dtype)


def _visible(ancestors_RW: Tensor, lengths_2: Tensor, *, num_rows: int, capacity: int) -> Tensor:
    """bool [R, C]."""
    prefix, tree = lengths_2
    named_C = torch.arange(capacity, device=lengths_2.device) - prefix
    shifts = torch.arange(WORD_BITS, device=lengths_2.device, dtype=torch.int32)
    bits_RT = (ancestors_RW[:, :, None] >> shifts & 1).bool().flatten(1)
    num_named = bits_RT.shape[1]
    in_tree_C = (named_C >= 0) & (named_C < (tree + num_rows).clamp(max=num_named))
    visible_RC: Tensor = (named_C < 0) | (in_tree_C & bits_RT.index_select(1, named_C.clamp(0, num_named - 1)))
    return visible_RC


@triton.jit
def _attend(
    q_QD, keys, values, first, stop, prefix, end, words_Q, is_row_Q, scale,
    out_QD, peak_Q, total_Q,
    MASKED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """Blocks first to stop - 1 into (sum of 2^(s - peak) v, peak = max s, sum of 2^(s - peak)), s = scale q k."""
    dims = tl.arange(0, D)
    for block in tl.range(first, stop):
        slots = block * BLOCK + tl.arange(0, BLOCK)
        offsets = slots[:, None] * D + dims[None, :]
        if MASKED:
            inside = slots < end
            k_BD = tl.load(keys + offsets, mask=inside[:, None], other=0.0)
            # Slots beyond the end may hold anything, and not-a-number times a weight of zero is not zero.
            v_BD = tl.load(values + offsets, mask=inside[:, None], other=0.0)
        else:
            k_BD = tl.load(keys + offsets)
            v_BD = tl.load(values + offsets)
        zero_QB = tl.zeros([q_QD.shape[0], BLOCK], dtype=tl.float32)
        s_QB = dot(q_QD, tl.trans(k_BD), zero_QB, UPCAST) * scale
        if MASKED:
            bits = slots - prefix
            in_tree = (bits >= 0) & inside
            # Few blocks are masked, and rows of a query block share their words, so these loads hit the cache. A
            # padding query sees all slots, so that its sum is not zero.
            word_QB = tl.load(
                words_Q[:, None] + (bits >> 5)[None, :], mask=is_row_Q[:, None] & in_tree[None, :], other=-1
            )
            named_QB = ((word_QB >> (bits & 31)[None, :]) & 1) == 1
            visible_QB = ((bits < 0)[None, :] | named_QB) & inside[None, :]
            s_QB = tl.where(visible_QB, s_QB, float("-inf"))
        new_peak_Q = tl.maximum(peak_Q, tl.max(s_QB, axis=1))
        fade_Q = tl.exp2(peak_Q - new_peak_Q)
        weights_QB = tl.exp2(s_QB - new_peak_Q[:, None])
        total_Q = total_Q * fade_Q + tl.sum(weights_QB, axis=1)
        out_QD = dot(weights_QB.to(v_BD.dtype), v_BD, out_QD * fade_Q[:, None], UPCAST)
        peak_Q = new_peak_Q
    return out_QD, peak_Q, total_Q


@triton.jit
def _tree_attention_kernel(
    q, keys, values, ancestors, lengths, out, partials, arrivals,
    num_rows, capacity, scale, num_splits,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK: tl.constexpr, MIN_BLOCKS: tl.constexpr, WORDS: tl.constexpr,
    UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """out[r, h] = softmax(scale q[r, h] k^T over visible slots) v; scale has log2(e) in it, for powers of two.

    A partial result is Q rows of D sums, then Q peaks and Q totals. `arrivals` counts the splits that have stored
    theirs, and is zero again when the kernel ends.
    """
    query_block, split, kv_head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    query = query_block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    row = query // GROUP
    is_row = row < num_rows
    dims = tl.arange(0, D)
    q_offsets = (row * NUM_HEADS + kv_head * GROUP + query % GROUP)[:, None] * D + dims[None, :]
    keys += kv_head.to(tl.int64) * capacity * D
    values += kv_head.to(tl.int64) * capacity * D
    if PDL:
        tl.extra.cuda.gdc_wait()
        # The successor may start now: it waits, too, before it reads what is written here.
        tl.extra.cuda.gdc_launch_dependents()

    prefix = tl.load(lengths)
    # Padding rows of a forward may lie beyond the masks' range: no row sees those.
    end = tl.minimum(prefix + tl.minimum(tl.load(lengths + 1) + num_rows, WORDS * 32), capacity)
    num_blocks = tl.cdiv(end, BLOCK)
    per_split = tl.maximum(tl.cdiv(num_blocks, num_splits), MIN_BLOCKS)
    # Splits that a short prefix leaves without work take no part.
    num_active = tl.cdiv(num_blocks, per_split)
    if split >= num_active:
        return
    first = split * per_split
    stop = tl.minimum(first + per_split, num_blocks)
    unmasked_stop = tl.minimum(stop, prefix // BLOCK)

    q_QD = tl.load(q + q_offsets, mask=is_row[:, None], other=0.0)
    words_Q = ancestors + row * WORDS
    out_QD = tl.zeros([BLOCK_Q, D], dtype=tl.float32)
    total_Q = tl.zeros([BLOCK_Q], dtype=tl.float32)
    # Finite, so that a block without visible slots has no effect instead of infinity minus infinity.
    peak_Q = tl.full([BLOCK_Q], -1.0e30, dtype=tl.float32)
    out_QD, peak_Q, total_Q = _attend(
        q_QD, keys, values, first, unmasked_stop, prefix, end, words_Q, is_row, scale,
        out_QD, peak_Q, total_Q, False, D, BLOCK, UPCAST,
    )  # fmt: skip  # grouped as the parameters are
    out_QD, peak_Q, total_Q = _attend(
        q_QD, keys, values, tl.maximum(first, unmasked_stop), stop, prefix, end, words_Q, is_row, scale,
        out_QD, peak_Q, total_Q, True, D, BLOCK, UPCAST,
    )  # fmt: skip  # grouped as the parameters are

    if num_active > 1:
        cell = kv_head * tl.num_programs(0) + query_block
        size: tl.constexpr = BLOCK_Q * (D + 2)
        partials += cell.to(tl.int64) * num_splits * size
        queries = tl.arange(0, BLOCK_Q)
        sums = partials + queries[:, None] * D + dims[None, :]
        peaks = partials + BLOCK_Q * D + queries
        tl.store(sums + split * size, out_QD, cache_modifier=".cg")
        tl.store(peaks + split * size, peak_Q, cache_modifier=".cg")
        tl.store(peaks + BLOCK_Q + split * size, total_Q, cache_modifier=".cg")
        tl.debug_barrier()  # every thread's part is stored before one thread signals it
        if tl.atomic_add(arrivals + cell, 1, sem="acq_rel") != num_active - 1:
            return
        tl.store(arrivals + cell, 0)
        out_QD, peak_Q, total_Q = _merge(sums, peaks, num_active, size, BLOCK_Q, D)
    out_QD = out_QD / total_Q[:, None]
    tl.store(out + q_offsets, out_QD.to(out.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def _merge(sums, peaks, num_active, size, BLOCK_Q: tl.constexpr, D: tl.constexpr):
    """Partial results 0 to num_active - 1, added in this order."""
    out_QD = tl.zeros([BLOCK_Q, D], dtype=tl.float32)
    total_Q = tl.zeros([BLOCK_Q], dtype=tl.float32)
    peak_Q = tl.full([BLOCK_Q], -1.0e30, dtype=tl.float32)
    # Stages: without them each round would wait for the memory again.
    for split in tl.range(0, num_active, num_stages=4):
        sums_QD = tl.load(sums + split * size, cache_modifier=".cg")
        other_peak_Q = tl.load(peaks + split * size, cache_modifier=".cg")
        other_total_Q = tl.load(peaks + BLOCK_Q + split * size, cache_modifier=".cg")
        new_peak_Q = tl.maximum(peak_Q, other_peak_Q)
        fade_Q = tl.exp2(peak_Q - new_peak_Q)
        other_fade_Q = tl.exp2(other_peak_Q - new_peak_Q)
        out_QD = out_QD * fade_Q[:, None] + sums_QD * other_fade_Q[:, None]
        total_Q = total_Q * fade_Q + other_total_Q * other_fade_Q
        peak_Q = new_peak_Q
    return out_QD, peak_Q, total_Q


class _Grid(NamedTuple):
    """Division of the work, from static facts only, so that a captured graph stays valid while lengths grow."""

    block_q: int
    num_query_blocks: int
    num_splits: int
    num_counters: int  # room for arrivals, equal for any number of rows, so that partial results never overwrite them
    num_partials: int

    @property
    def workspace_size(self) -> int:
        return self.num_counters + self.num_partials


def _plan(num_rows: int, num_heads: int, keys_GCD: Tensor, num_splits: int | None) -> _Grid:
    num_kv_heads, capacity, head_dim = keys_GCD.shape
    num_queries = num_rows * num_heads // num_kv_heads
    # More queries per program would read keys less often, but one program merges them: 32 are 16 KB per split. fp32 has
    # no matrix instructions, and 32 of its queries do not fit in registers.
    block_q = BLOCKS_Q[num_queries > BLOCKS_Q[0] and keys_GCD.dtype != torch.float32]
    num_query_blocks = triton.cdiv(num_queries, block_q)
    num_cells = num_kv_heads * num_query_blocks
    if num_splits is None:
        num_splits = min(
            triton.cdiv(capacity, MIN_BLOCKS * BLOCK),
            max(1, NUM_SMS // num_cells),
            MAX_MERGE_BYTES // (4 * block_q * head_dim),
        )
    num_partials = num_cells * num_splits * block_q * (head_dim + 2) if num_splits > 1 else 0
    num_counters = num_kv_heads * MAX_ROWS * MAX_GROUP // BLOCKS_Q[0]
    return _Grid(block_q, num_query_blocks, num_splits, num_counters, num_partials)


def tree_attention_workspace(
    num_rows: int, num_heads: int, keys_GCD: Tensor, *, num_splits: int | None = None
) -> Tensor:
    """Zeros that `tree_attention` takes as `workspace`, for up to `num_rows` rows on caches of this shape and dtype.

    Every call leaves its counters at zero, so one workspace serves all layers and all forwards of a stream.
    """
    plans = [_plan(rows, num_heads, keys_GCD, num_splits) for rows in range(1, num_rows + 1)]
    size = max(plan.workspace_size for plan in plans)
    return torch.zeros(size, dtype=torch.float32, device=keys_GCD.device)


def tree_attention(
    q_RHD: Tensor,
    keys_GCD: Tensor,
    values_GCD: Tensor,
    ancestors_RW: Tensor,
    lengths_2: Tensor,
    *,
    scale: float,
    num_splits: int | None = None,
    workspace: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """`tree_attention_reference`, (R, H, D), in one launch. `pdl` and errors: see `runtime`.

    q_RHD: fp32, fp16 or bf16, contiguous, as all tensors here. R from 1 to 64; D 16, 32, 64 or 128.
    keys_GCD, values_GCD: cache of one layer, dtype of q; this forward's rows are in it already. H / G is 1 to 8.
    ancestors_RW: int32: bit s % 32 of word s // 32 is set where the row sees tree slot s, its own included. W from 1 to
        8.
    lengths_2: int32, (prefix, tree) before this forward's rows: at most C - R in total. Read on the device and
        therefore not checked. No row sees tree slots without a word.
    scale: factor of the products of queries and keys, usually 1 / sqrt(D).
    num_splits: most programs that share the keys of one query block; fewer if a program would have less than 4 blocks
        of 64 slots.
    workspace: the result of `tree_attention_workspace`, or longer. Without it every call clears one, with an extra
        launch.
    """
    _check(q_RHD, keys_GCD, values_GCD, ancestors_RW, lengths_2)
    out = torch.empty_like(q_RHD)
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"num_splits is {num_splits}; expected at least 1")
    num_rows, num_heads, head_dim = q_RHD.shape
    num_kv_heads, capacity, _ = keys_GCD.shape
    grid = _plan(num_rows, num_heads, keys_GCD, num_splits)
    if workspace is None:
        workspace = torch.zeros(grid.workspace_size, dtype=torch.float32, device=q_RHD.device)
    check_dtype((torch.float32,), workspace=workspace)
    check_shape("workspace", workspace, (None,))
    check_layout(q_RHD=q_RHD, workspace=workspace)
    if len(workspace) < grid.workspace_size:
        raise ValueError(f"workspace has shape {tuple(workspace.shape)}; expected at least ({grid.workspace_size})")
    _tree_attention_kernel[(grid.num_query_blocks, grid.num_splits, num_kv_heads)](
        q_RHD,
        keys_GCD,
        values_GCD,
        ancestors_RW,
        lengths_2,
        out,
        workspace[grid.num_counters :],
        workspace.view(torch.int32),
        num_rows,
        capacity,
        scale * math.log2(math.e),
        grid.num_splits,
        NUM_HEADS=num_heads,
        GROUP=num_heads // num_kv_heads,
        D=head_dim,
        BLOCK_Q=grid.block_q,
        BLOCK=BLOCK,
        MIN_BLOCKS=MIN_BLOCKS,
        WORDS=ancestors_RW.shape[1],
        UPCAST=INTERPRETED,
        PDL=pdl,
        num_warps=8 if q_RHD.dtype == torch.float32 else 4,
        num_stages=2 if q_RHD.dtype == torch.float32 else 3,
        launch_pdl=pdl,
    )
    return out


def _check(q_RHD: Tensor, keys_GCD: Tensor, values_GCD: Tensor, ancestors_RW: Tensor, lengths_2: Tensor) -> None:
    check_shape("q_RHD", q_RHD, (None, None, None))
    num_rows, num_heads, head_dim = q_RHD.shape
    if not 1 <= num_rows <= MAX_ROWS or head_dim not in HEAD_DIMS:
        raise ValueError(
            f"q_RHD has shape {tuple(q_RHD.shape)}; supported: R from 1 to {MAX_ROWS}, "
            f"D one of {', '.join(map(str, HEAD_DIMS))}"
        )
    check_shape("keys_GCD", keys_GCD, (None, None, head_dim), why="D of q_RHD")
    num_kv_heads = keys_GCD.shape[0]
    if num_kv_heads == 0 or num_heads % num_kv_heads or not 1 <= num_heads // num_kv_heads <= MAX_GROUP:
        raise ValueError(
            f"keys_GCD has shape {tuple(keys_GCD.shape)} for {num_heads} query heads; "
            f"supported: 1 to {MAX_GROUP} query heads per key/value head"
        )
    check_shape("values_GCD", values_GCD, tuple(keys_GCD.shape), why="that of keys_GCD")
    check_shape("ancestors_RW", ancestors_RW, (num_rows, None), why="R of q_RHD")
    if not 1 <= ancestors_RW.shape[1] <= MAX_WORDS:
        raise ValueError(f"ancestors_RW has shape {tuple(ancestors_RW.shape)}; supported: W from 1 to {MAX_WORDS}")
    check_shape("lengths_2", lengths_2, (2,))
    check_dtype(FLOATS, q_RHD=q_RHD)
    like_q = {"keys_GCD": keys_GCD, "values_GCD": values_GCD}
    check_dtype((q_RHD.dtype,), **like_q)
    integers = {"ancestors_RW": ancestors_RW, "lengths_2": lengths_2}
    check_dtype((torch.int32,), **integers)
    check_layout(q_RHD=q_RHD, **like_q, **integers)
