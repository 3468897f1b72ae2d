"""A shard's GEMM that pushes its tiles to all ranks, and the all-reduce, residual and RMSNorm that wait for them.

R rows, K columns of this rank's shard, N = H hidden size. The GEMM's programs push and end; none waits for another
rank, so its grid may be larger than the number of programs that run at once. Only the few programs of the second
kernel wait, which is `all_reduce` without its first half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.all_reduce import all_reduce, all_reduce_reference, check_norm
from swiftspec.kernels.exchange import PAYLOADS, SLOT, Exchange, push
from swiftspec.kernels.runtime import INTERPRETED, check_dtype, check_layout, check_shape, dot

MAX_ROWS = 64  # one tile: every weight is read once
BLOCK_N = 64  # the rows of one wgmma: the weight comes first, so that few rows of x waste nothing
BLOCK_K = 128
NUM_STAGES = {16: 4, 32: 3, 64: 2}  # by rows: two programs in the shared memory of an SM, 64 KB of weights in flight
MAX_SPLITS = 16  # one program adds them up
PROGRAMS = 2 * 132  # two per SM of an H100 or H200


def gemm_all_reduce_reference(
    xs: Sequence[Tensor], weights: Sequence[Tensor], residual_RH: Tensor, norm_H: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """`all_reduce_reference` of every rank's x weight^T, rounded to the dtype in which it is sent."""
    parts = [(x_RK.float() @ weight_NK.float().T).to(x_RK.dtype) for x_RK, weight_NK in zip(xs, weights, strict=True)]
    return all_reduce_reference(parts, residual_RH, norm_H, eps=eps)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Buffers for the parts and counters of programs that share a tile. One suffices for all calls of a stream."""

    parts: Tensor  # fp32
    counters: Tensor  # int32 per tile; 0 between kernels

    @classmethod
    def make(cls, *, hidden: int, device: torch.device) -> Workspace:
        """Workspace for every x and weight of a hidden size."""
        num_tiles = triton.cdiv(hidden, BLOCK_N)
        parts = torch.empty(num_tiles * _max_splits(hidden) * MAX_ROWS * BLOCK_N, device=device)
        return cls(parts, torch.zeros(num_tiles, dtype=torch.int32, device=device))


@triton.jit
def _weight_tile(weight, columns, first_k, size_n, size_k, BLOCK_K: tl.constexpr):
    inner = first_k + tl.arange(0, BLOCK_K)
    inside = (columns[:, None] < size_n) & (inner[None, :] < size_k)
    return tl.load(weight + columns[:, None].to(tl.int64) * size_k + inner[None, :], mask=inside, other=0.0)


@triton.jit
def _x_tile(x, rows, first_k, num_rows, size_k, BLOCK_K: tl.constexpr):
    """Transposed."""
    inner = first_k + tl.arange(0, BLOCK_K)
    inside = (rows[None, :] < num_rows) & (inner[:, None] < size_k)
    return tl.load(x + rows[None, :] * size_k + inner[:, None], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["rank", "num_rows"])  # the same code on all ranks, and for all rows of a tile
def _gemm_push_kernel(
    x,
    weight,
    parts,
    counters,
    peers,
    state,
    rank,
    num_rows,
    size_n,
    size_k,
    split_k,
    max_rows,
    stride,
    WORLD: tl.constexpr,
    PAYLOAD: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Every rank's slot <- x weight^T. Program (t, s) sums part s of K for tile t; the last of a tile pushes it."""
    tile = tl.program_id(0)
    split = tl.program_id(1)
    rows = tl.arange(0, BLOCK_R)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    first_k = split * split_k
    last_k = tl.minimum(first_k + split_k, size_k)

    # The weight depends on nothing that ran before: a first tile may be on its way while the predecessor finishes.
    tile_NK = _weight_tile(weight, columns, first_k, size_n, size_k, BLOCK_K)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(state + SLOT, volatile=True)
    total = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
    total = dot(tile_NK, _x_tile(x, rows, first_k, num_rows, size_k, BLOCK_K), total, UPCAST)
    for k in range(first_k + BLOCK_K, last_k, BLOCK_K):
        tile_NK = _weight_tile(weight, columns, k, size_n, size_k, BLOCK_K)
        total = dot(tile_NK, _x_tile(x, rows, k, num_rows, size_k, BLOCK_K), total, UPCAST)

    if SPLITS > 1:
        inner = tl.arange(0, BLOCK_N)[:, None] * BLOCK_R + rows[None, :]
        tile_parts = parts + tile * (SPLITS * BLOCK_N * BLOCK_R) + inner
        tl.store(tile_parts + split * (BLOCK_N * BLOCK_R), total, cache_modifier=".cg")
        tl.debug_barrier()  # stored by all threads before one of them counts
        if tl.atomic_add(counters + tile, 1) < SPLITS - 1:
            return
        tl.store(counters + tile, 0)
        total = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
        for part in tl.static_range(SPLITS):  # in one order, whoever came last
            total += tl.load(tile_parts + part * (BLOCK_N * BLOCK_R), cache_modifier=".cg")

    block_words: tl.constexpr = BLOCK_N * PAYLOAD.itemsize // 4
    words = _pack(tl.trans(total), PAYLOAD, BLOCK_R, BLOCK_N)
    word_columns = tile * block_words + tl.arange(0, block_words)
    offsets = ((slot * WORLD + rank) * max_rows + rows[:, None]) * stride + word_columns[None, :]
    inside = (rows[:, None] < num_rows) & (word_columns[None, :] < size_n * PAYLOAD.itemsize // 4)
    push(words, offsets, inside, peers, rank, WORLD)


@triton.jit
def _pack(values, PAYLOAD: tl.constexpr, NUM_ROWS: tl.constexpr, NUM_COLUMNS: tl.constexpr):
    """The words of fp32 values [NUM_ROWS, NUM_COLUMNS], row by row, rounded to the payload's dtype."""
    if PAYLOAD.is_fp32():
        words = values.to(tl.int32, bitcast=True)
    else:
        low, high = tl.split(tl.reshape(values, [NUM_ROWS, NUM_COLUMNS // 2, 2]))
        low = low.to(PAYLOAD).to(tl.int16, bitcast=True).to(tl.int32)
        high = high.to(PAYLOAD).to(tl.int16, bitcast=True).to(tl.int32)
        words = (low & 0xFFFF) | (high << 16)
    return words


def gemm_all_reduce(
    x_RK: Tensor,
    weight_NK: Tensor,
    residual_RH: Tensor,
    norm_H: Tensor,
    exchange: Exchange,
    *,
    eps: float,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """`gemm_all_reduce_reference`'s second answer, its first replacing `residual_RH`.

    Parameters
    ----------
    x_RK, weight_NK : Tensor
        This rank's shard, of the exchange's dtype; up to 64 rows; N is the exchange's hidden size.
    residual_RH, norm_H : Tensor
        As the residual and the weight of `all_reduce`.
    workspace : Workspace, optional
        One of the hidden size, kept between calls; without it, every call makes and fills one.
    pdl : bool
        Programmatic dependent launch: both kernels start while their predecessors end. Only on CUDA, sm_90 and newer.

    Raises
    ------
    ValueError
        For a shape, dtype, device or layout that is not supported.
    """
    check_shape("x_RK", x_RK, (None, None))
    num_rows, size_k = x_RK.shape
    if num_rows > min(MAX_ROWS, exchange.max_rows) or size_k < 1:
        raise ValueError(
            f"x_RK has shape {tuple(x_RK.shape)}; supported: R up to {min(MAX_ROWS, exchange.max_rows)}, K from 1"
        )
    check_shape("weight_NK", weight_NK, (exchange.hidden, size_k), why="H of the exchange, K of x_RK")
    workspace = workspace or Workspace.make(hidden=exchange.hidden, device=exchange.peers.device)
    tensors = {"x_RK": x_RK, "weight_NK": weight_NK}
    check_dtype((exchange.dtype,), **tensors)
    check_layout(peers=exchange.peers.table, **tensors, parts=workspace.parts, counters=workspace.counters)
    if workspace.counters.numel() < triton.cdiv(exchange.hidden, BLOCK_N):
        raise ValueError(f"workspace is for {workspace.counters.numel()} tiles; H is {exchange.hidden}: another's")
    # All checks come before the first push: ranks that do not push the same would wait for each other forever.
    check_norm(residual_RH, norm_H, exchange, num_rows=num_rows)
    if num_rows:
        _launch(x_RK, weight_NK, exchange, workspace, pdl=pdl)
    return all_reduce(None, residual_RH, norm_H, exchange, eps=eps, num_rows=num_rows, pdl=pdl)


def _launch(x_RK: Tensor, weight_NK: Tensor, exchange: Exchange, workspace: Workspace, *, pdl: bool) -> None:
    (num_rows, size_k), size_n = x_RK.shape, exchange.hidden
    splits = min(_max_splits(size_n), triton.cdiv(size_k, 2 * BLOCK_K))
    split_k = triton.cdiv(triton.cdiv(size_k, splits), BLOCK_K) * BLOCK_K
    splits = triton.cdiv(size_k, split_k)  # none is empty
    block_r = max(triton.next_power_of_2(num_rows), 16)
    _gemm_push_kernel[(triton.cdiv(size_n, BLOCK_N), splits)](
        x_RK,
        weight_NK,
        workspace.parts,
        workspace.counters,
        exchange.peers.table,
        exchange.state,
        exchange.peers.rank,
        num_rows,
        size_n,
        size_k,
        split_k,
        exchange.max_rows,
        exchange.stride,
        WORLD=exchange.peers.world_size,
        PAYLOAD=PAYLOADS[exchange.dtype],
        SPLITS=splits,
        BLOCK_R=block_r,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K if exchange.dtype.itemsize == 2 else BLOCK_K // 2,
        UPCAST=INTERPRETED,
        PDL=pdl,
        num_warps=4,
        num_stages=NUM_STAGES[block_r],
        launch_pdl=pdl,
    )


def _max_splits(hidden: int) -> int:
    num_tiles: int = triton.cdiv(hidden, BLOCK_N)
    return min(max(PROGRAMS // num_tiles, 1), MAX_SPLITS)
