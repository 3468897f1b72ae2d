"""One-shot all-reduce of a TP group: every rank pushes its rows to all ranks and sums what it receives.

R rows, H hidden size, W ranks. Residual addition and RMSNorm follow in the same kernel, because a summed row is in
registers. The exchange between ranks is in `exchange.py`.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.exchange import (
    LATE,
    PAYLOADS,
    ROWS,
    SLOT,
    Exchange,
    advance,
    clear,
    push,
    receive,
    symmetric_buffers,
)
from swiftspec.kernels.rms_norm import rms_norm_reference
from swiftspec.kernels.runtime import FLOATS, check_dtype, check_layout, check_shape

# Limit of one shot: every rank sends everything to all others, so beyond this a ring or a tree is faster.
MAX_BYTES = 256 * 1024
MAX_ROWS = 64


def all_reduce_reference(
    parts: Sequence[Tensor], residual_RH: Tensor, weight_H: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """(new residual, answer) of `rms_norm_reference` with the sum of all ranks' parts, in fp32 and in their order."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    summed = residual_RH.clone()
    return summed, rms_norm_reference(summed, total, weight_H, eps=eps)


@triton.jit(do_not_specialize=["rank"])  # the same code on all ranks
def _all_reduce_kernel(
    x, residual, weight, out, peers, own, state, rank, max_rows, words, stride, eps, max_polls,
    WORLD: tl.constexpr, PAYLOAD: tl.constexpr, PUSH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """residual <- s = residual + sum over ranks of x; out <- s rsqrt(mean(s^2) + eps) weight.

    Program (c, r) pushes chunk c of row r (unless a preceding kernel has) and clears that chunk of the previous slot. A
    norm needs the whole row, so the last chunk's program receives all of it. On every rank a program waits only for
    pushes by itself and by earlier programs, which start before it.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    last_chunk = tl.num_programs(0) - 1
    per_word: tl.constexpr = 4 // PAYLOAD.itemsize
    size = words * per_word
    values = tl.arange(0, BLOCK * per_word)
    awaited = values < tl.where(chunk == last_chunk, size, 0)
    scale = tl.load(weight + values, mask=awaited, other=0.0)
    here = row.to(tl.int64) * size + values
    if PDL:
        tl.extra.cuda.gdc_wait()
        # The successor may fetch its weights while this kernel waits for the other ranks.
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(state + SLOT, volatile=True)
    rows_before = tl.load(state + ROWS, volatile=True)
    # Once a rank is known to be gone, the rest of the forward no longer waits for it.
    polls = tl.where(tl.load(state + LATE, volatile=True) > 0, 1, max_polls)

    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    rank_stride = max_rows * stride
    if PUSH:
        offsets = (slot * WORLD + rank) * rank_stride + row * stride + columns
        sent = tl.load(x + row * words + columns, mask=columns < words, other=0)
        push(sent, offsets, columns < words, peers, rank, WORLD)
    # The other ranks wait for the push, so everything else follows it and overlaps the wait for theirs.
    base = tl.load(residual + here, mask=awaited, other=0.0)
    advance(state, slot, tl.num_programs(0) * tl.num_programs(1), tl.num_programs(1))
    before = own + (slot + 2) % 3 * WORLD * rank_stride
    clear(before, row, rows_before, tl.num_programs(1), columns, columns < words, stride, rank_stride, WORLD)

    if chunk < last_chunk:
        return
    columns = tl.arange(0, BLOCK)
    inbox = own + slot * WORLD * rank_stride + row * stride
    total, late = receive(inbox, columns, columns < words, rank_stride, polls, WORLD, PAYLOAD)
    if late > 0:
        tl.store(state + LATE, late)
    total += base.to(tl.float32)
    tl.store(residual + here, total.to(residual.dtype.element_ty), mask=awaited)
    total *= tl.rsqrt(tl.sum(total * total, axis=0) / size + eps) * scale.to(tl.float32)
    tl.store(out + here, total.to(out.dtype.element_ty), mask=awaited)


def all_reduce(
    x_RH: Tensor | None,
    residual_RH: Tensor,
    weight_H: Tensor,
    exchange: Exchange,
    *,
    eps: float,
    num_rows: int | None = None,
    pdl: bool = False,
) -> Tensor:
    """`all_reduce_reference`'s second result, (R, H), its first replacing `residual_RH`. `pdl`, errors: see `runtime`.

    x_RH: this rank's part, with the exchange's hidden size and dtype. None if a preceding kernel has pushed it (as
    `tools/gemm_all_reduce.py` does), `num_rows` rows of it. residual_RH, weight_H: fp32, fp16 or bf16. The result has
    the dtype of `weight_H`.
    """
    num_rows = _check_rows(x_RH, num_rows, exchange)
    check_norm(residual_RH, weight_H, exchange, num_rows=num_rows)
    if x_RH is not None:
        check_layout(peers=exchange.peers.table, x_RH=x_RH)
    out = torch.empty(num_rows, exchange.hidden, dtype=weight_H.dtype, device=exchange.peers.device)
    if num_rows:
        block = triton.next_power_of_2(exchange.words)
        # Sixteen bytes per thread and access, and two accesses per row and rank: enough in flight for a CTA, no spill.
        num_warps = min(max(block // 256, 4), 16)
        chunk = min(block, num_warps * 128)
        _all_reduce_kernel[(triton.cdiv(exchange.words, chunk), num_rows)](
            out if x_RH is None else x_RH.view(torch.int32),
            residual_RH,
            weight_H,
            out,
            exchange.peers.table,
            exchange.peers.own,
            exchange.state,
            exchange.peers.rank,
            exchange.max_rows,
            exchange.words,
            exchange.stride,
            eps,
            exchange.max_polls,
            WORLD=exchange.peers.world_size,
            PAYLOAD=PAYLOADS[exchange.dtype],
            PUSH=x_RH is not None,
            CHUNK=chunk,
            BLOCK=block,
            PDL=pdl,
            num_warps=num_warps,
            launch_pdl=pdl,
        )
    return out


def connect(group: dist.ProcessGroup, *, hidden: int, dtype: torch.dtype, device: torch.device) -> Exchange | None:
    """The ranks' exchange for few rows; None, on all of them, if their GPUs have no symmetric memory or rows are long.

    Collective: every rank of the group calls it.
    """
    world_size = dist.get_world_size(group)
    max_rows = min(MAX_ROWS, MAX_BYTES // (hidden * dtype.itemsize))
    try:
        words = Exchange.words_needed(world_size=world_size, hidden=hidden, dtype=dtype, max_rows=max_rows)
    except ValueError:  # more ranks or longer rows than the kernel supports
        return None
    peers = symmetric_buffers(words, group=group, device=device)
    return None if peers is None else Exchange(peers, hidden, dtype, max_rows)


def check_norm(residual_RH: Tensor, weight_H: Tensor, exchange: Exchange, *, num_rows: int) -> None:
    """ValueError for a residual or a weight that `all_reduce` does not support."""
    check_shape("residual_RH", residual_RH, (num_rows, exchange.hidden))
    check_shape("weight_H", weight_H, (exchange.hidden,), why="the exchange's")
    tensors = {"residual_RH": residual_RH, "weight_H": weight_H}
    check_dtype(FLOATS, **tensors)
    check_layout(peers=exchange.peers.table, **tensors)


def _check_rows(x_RH: Tensor | None, num_rows: int | None, exchange: Exchange) -> int:
    if (x_RH is None) == (num_rows is None):
        raise ValueError("exactly one of x_RH and num_rows is expected")
    if x_RH is not None:
        check_shape("x_RH", x_RH, (None, exchange.hidden), why="the exchange's")
        check_dtype((exchange.dtype,), x_RH=x_RH)
        if x_RH.storage_offset() * x_RH.itemsize % 4:
            raise ValueError(f"x_RH starts at element {x_RH.storage_offset()}; expected a multiple of 4 bytes")
        num_rows = x_RH.shape[0]
    assert num_rows is not None
    if not 0 <= num_rows <= exchange.max_rows:
        name = "num_rows" if x_RH is None else "x_RH"
        raise ValueError(f"{name} has {num_rows} rows; the exchange has room for {exchange.max_rows}")
    return num_rows
