"""Ranks of a role as processes: each runs the real kernels on memory that all of them map.

Between processes on a CPU it is shared memory and the interpreter; with a GPU it is symmetric memory, where ranks share
a device if there are fewer devices than ranks. This module is imported in every one of those processes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from swiftspec.engine.model.gpu.ops import joined_ops, ops_for
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.kernels.all_reduce import all_reduce, all_reduce_reference, connect
from swiftspec.kernels.exchange import (
    MAX_POLLS,
    SENTINEL,
    Exchange,
    PeerBuffers,
    map_peers,
    symmetric_buffers,
)
from swiftspec.profiler.helper_processes import forkserver
from tests.kernels.buffers import shared_buffers
from tools.gemm_all_reduce import Workspace, gemm_all_reduce, gemm_all_reduce_reference

MAX_RANKS = 4
EPS = 1e-5
DEADLINE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """Work of all ranks by epoch: all-reduce of `rows` rows, with products over `size_k` if given."""

    world_size: int
    hidden: int
    dtype: torch.dtype
    rows: tuple[int, ...]
    size_k: int | None = None
    late_rank: int | None = None  # sleeps before its third epoch
    absent_rank: int | None = None  # never comes
    max_polls: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Results of one rank after every epoch: the answer and the residual."""

    outs: list[Tensor]
    residuals: list[Tensor]
    error: str | None


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Normal numbers with zeros of both signs among them, and nothing but -0.0 in the first row of every third seed."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    flat = values.view(-1)
    flat[::5] = -0.0
    flat[::7] = 0.0
    if seed % 3 == 0:
        values[0] = -0.0
    return values.to(dtype)


def part(case: Case, epoch: int, rank: int) -> Tensor:
    return numbers(case.rows[epoch], case.hidden, seed=100 * epoch + 3 * rank, dtype=case.dtype)


def factors(case: Case, epoch: int, rank: int) -> tuple[Tensor, Tensor]:
    """A rank's x and weight. The scale makes the product's numbers some ones."""
    assert case.size_k is not None
    x = numbers(case.rows[epoch], case.size_k, seed=100 * epoch + 3 * rank, dtype=case.dtype)
    return x, numbers(case.hidden, case.size_k, seed=1 + rank, dtype=case.dtype) / 8


def references(case: Case, epoch: int) -> tuple[Tensor, Tensor]:
    """(residual, answer) after an epoch."""
    ranks = range(case.world_size)
    before, weight = residual(case, epoch), norm_weight(case)
    if case.size_k is None:
        return all_reduce_reference([part(case, epoch, rank) for rank in ranks], before, weight, eps=EPS)
    xs, weights = zip(*(factors(case, epoch, rank) for rank in ranks), strict=True)
    return gemm_all_reduce_reference(xs, weights, before, weight, eps=EPS)


def assert_right(case: Case, answers: list[Answer], tolerance: float) -> None:
    """Every epoch equals the reference, and has the same bits on all ranks."""
    first, *others = answers
    for epoch in range(len(case.rows)):
        total, expected = references(case, epoch)
        torch.testing.assert_close(first.outs[epoch], expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(first.residuals[epoch], total, rtol=tolerance, atol=tolerance)
        for other in others:
            assert torch.equal(bits(other.outs[epoch]), bits(first.outs[epoch]))
            assert torch.equal(bits(other.residuals[epoch]), bits(first.residuals[epoch]))
    assert [answer.error for answer in answers] == [None] * case.world_size


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def words_of(case: Case) -> int:
    return Exchange.words_needed(
        world_size=case.world_size, hidden=case.hidden, dtype=case.dtype, max_rows=max(case.rows)
    )


def residual(case: Case, epoch: int) -> Tensor:
    return numbers(case.rows[epoch], case.hidden, seed=100 * epoch + 50, dtype=case.dtype)


def norm_weight(case: Case) -> Tensor:
    return numbers(1, case.hidden, seed=7, dtype=case.dtype)[0]


class Ranks:
    """Processes that are told what to run, together."""

    def __init__(self, processes: list[ProcessPoolExecutor], *, device: str) -> None:
        self._processes = processes
        self._device = device

    def run(self, function: Callable[[Case, PeerBuffers], Answer], case: Case) -> list[Answer]:
        """`function(case, peers)` in as many processes as the case has ranks; their answers by rank."""
        num_words = words_of(case)
        shared = shared_buffers(case.world_size, num_words, fill=SENTINEL.value) if self._device == "cpu" else None
        # What symmetric memory knows of a process group outlives the group: with it, every run has its own processes.
        fresh = [] if self._device == "cpu" else _start(case.world_size)
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store")
            futures = [
                process.submit(_run, function, case, rank, shared, num_words, store)
                for rank, process in enumerate((fresh or self._processes)[: case.world_size])
            ]
            answers = [future.result(timeout=DEADLINE_S) for future in futures]
        _stop(fresh)
        came = [answer for answer in answers if answer is not None]
        if len(came) < len(answers):
            pytest.skip("these GPUs have no symmetric memory")
        return came


@contextmanager
def starting_ranks(device: str) -> Iterator[Ranks]:
    processes = _start(MAX_RANKS)  # each when it is first needed
    try:
        yield Ranks(processes, device=device)
    finally:
        _stop(processes)


def _start(number: int) -> list[ProcessPoolExecutor]:
    context = forkserver(__name__)
    return [ProcessPoolExecutor(1, mp_context=context) for _ in range(number)]


def _stop(processes: list[ProcessPoolExecutor]) -> None:
    for process in processes:
        process.shutdown(cancel_futures=True)


def _run(
    function: Callable[[Case, PeerBuffers], Answer],
    case: Case,
    rank: int,
    shared: list[Tensor] | None,
    num_words: int,
    store: str,
) -> Answer | None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=case.world_size)
    try:
        dist.barrier()  # a rank that left while another one connects would fail that one
        if shared is not None:
            return function(case, map_peers(shared, rank))
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        assert dist.group.WORLD is not None
        peers = symmetric_buffers(num_words, group=dist.group.WORLD, device=device)
        return None if peers is None else function(case, peers)
    finally:
        dist.destroy_process_group()


def make_exchange(case: Case, peers: PeerBuffers) -> Exchange:
    # A poll takes some milliseconds under the interpreter, a microsecond on a GPU.
    max_polls = case.max_polls or (2_000 if peers.device.type == "cpu" else MAX_POLLS)
    return Exchange(peers, case.hidden, case.dtype, max_rows=max(case.rows), max_polls=max_polls)


def run_all_reduce(case: Case, peers: PeerBuffers) -> Answer:
    exchange = make_exchange(case, peers)
    weight = norm_weight(case).to(peers.device)

    def reduce(epoch: int, total: Tensor) -> Tensor:
        return all_reduce(part(case, epoch, peers.rank).to(peers.device), total, weight, exchange, eps=EPS)

    return run_epochs(case, peers, exchange, reduce)


def run_gemm_all_reduce(case: Case, peers: PeerBuffers) -> Answer:
    exchange = make_exchange(case, peers)
    weight = norm_weight(case).to(peers.device)
    workspace = Workspace.make(hidden=case.hidden, device=peers.device)

    def reduce(epoch: int, total: Tensor) -> Tensor:
        if epoch % 3 == 2:  # the two kinds take turns in a forward
            x, matrix = (factor.float() for factor in factors(case, epoch, peers.rank))
            return all_reduce((x @ matrix.T).to(peers.device, case.dtype), total, weight, exchange, eps=EPS)
        x, matrix = (factor.to(peers.device) for factor in factors(case, epoch, peers.rank))
        return gemm_all_reduce(x, matrix, total, weight, exchange, eps=EPS, workspace=workspace)

    return run_epochs(case, peers, exchange, reduce)


def run_epochs(
    case: Case, peers: PeerBuffers, exchange: Exchange | None, reduce: Callable[[int, Tensor], Tensor]
) -> Answer:
    outs: list[Tensor] = []
    residuals: list[Tensor] = []
    if peers.rank == case.absent_rank:
        return Answer(outs=outs, residuals=residuals, error=None)
    for epoch in range(len(case.rows)):
        if epoch == 2 and peers.rank == case.late_rank:
            time.sleep(0.3)
        total = residual(case, epoch).to(peers.device)
        outs.append(reduce(epoch, total).cpu())
        residuals.append(total.cpu())
    return Answer(outs=outs, residuals=residuals, error=failure(exchange))


def run_connected(case: Case, peers: PeerBuffers) -> Answer:
    """The same through `joined_ops`, which finds out what the device has: on a CPU nothing but the process group."""
    tp_group = TPGroup()
    tp_group.rank, tp_group.size = peers.rank, case.world_size
    exchange = connect(tp_group.group, hidden=case.hidden, dtype=case.dtype, device=peers.device)
    assert (exchange is None) == (peers.device.type == "cpu")
    ops = joined_ops(ops_for(peers.device), tp_group, hidden=case.hidden, dtype=case.dtype, device=peers.device)
    weight = norm_weight(case).to(peers.device)

    def checked(epoch: int, total: Tensor) -> Tensor:
        mine = part(case, epoch, peers.rank).to(peers.device)
        out = ops.rms_norm(total, mine, weight, eps=EPS)
        assert torch.equal(mine.cpu(), part(case, epoch, peers.rank))
        return out

    return run_epochs(case, peers, exchange, checked)


def failure(exchange: Exchange | None) -> str | None:
    try:
        if exchange is not None:
            exchange.check()
    except TimeoutError as error:
        return str(error)
    return None
