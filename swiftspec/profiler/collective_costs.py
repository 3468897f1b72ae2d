"""Cost of collectives between the ranks of a TP group on a CPU: sums, gathers and step commands.

In a tight loop, ranks are awake and in step when a collective starts; after computing, they are not. So a forward is
imitated, with products of a shard's sizes and the TP group's own collectives between them, and timed as a whole: with
and without collectives, started in step and by a step command. The differences are the costs.
"""

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.layers import Linear
from swiftspec.engine.model.runner import DTYPES
from swiftspec.engine.parallel.tp_group import NoOpTPGroup, TPGroup
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec
from swiftspec.profiler.helper_processes import answer_of_ranks
from swiftspec.profiler.op_timer import cache_bytes, num_copies
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.steps import HostGrid

ROWS = (1, 2, 4, 8, 16, 32, 128)  # the last is the chunk of a prefill
SAMPLES = 24
_WARM_UP = 3
_BUSY_S = 2e-4  # about the time that a leader needs between two forwards
_LEAST_S = 1e-9
_NOTE = bytes(200)


class Samples(NamedTuple):
    """Seconds at one number of rows."""

    sums: list[float]  # of one all-reduce, the mean over those of a forward
    gathers: list[float]
    notes: list[float]


class _Times(NamedTuple):
    """Seconds of an imitated forward: its layers with the head, and the gather."""

    layers_s: float
    gather_s: float

    @classmethod
    def medians(cls, times: "Sequence[_Times]") -> "_Times":
        return cls(*map(median, zip(*times, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCosts:
    """Time that a role's TP group adds to the computation of its shards."""

    # all_reduce, gather, note: seconds of one, by rows. A note (step command) costs what it adds to a forward that it
    # starts: followers start later, and their transport threads still run.
    all_reduce: HostGrid
    gather: HostGrid
    note: HostGrid

    @classmethod
    def of(cls, samples: Sequence[Mapping[int, Samples]]) -> "CollectiveCosts":
        """Costs from the samples by rows of several processes, one process after another."""

        def grid(field: str) -> HostGrid:
            by_rows = {rows: [s for each in samples for s in getattr(each[rows], field)] for rows in samples[0]}
            return HostGrid({rows: Latency.of_samples(s, Provenance.MEASURED) for rows, s in by_rows.items()})

        return cls(all_reduce=grid("sums"), gather=grid("gathers"), note=grid("notes"))


def collective_samples(
    spec: ModelSpec, dtype: str, *, devices: Sequence[int], ranks: int, rows: Sequence[int] = ROWS
) -> Mapping[int, Samples]:
    """Samples by rows, of processes that divide these cores and a model of this shape. RuntimeError if one fails."""
    available = sorted(os.sched_getaffinity(0))
    share = len(devices) // ranks
    own = [available[number] for number in devices]
    cores = [own[first : first + share] for first in range(0, ranks * share, share)]
    computed = DTYPES[dtype] if DTYPES[dtype].is_floating_point else torch.float32  # what ranks send each other
    with run_folder() as folder:
        arguments = (cores, f"file://{folder / 'tp_group'}", spec, computed, tuple(rows), SAMPLES)
        what = f"measuring collectives among {ranks} ranks"
        samples: Mapping[int, Samples] = answer_of_ranks(what, _rank, arguments, num_ranks=ranks)
    return samples


def _rank(
    rank: int,
    cores: Sequence[Sequence[int]],
    store: str,
    spec: ModelSpec,
    dtype: torch.dtype,
    rows: Sequence[int],
    num_samples: int,
    answers: Any,
) -> None:
    os.sched_setaffinity(0, cores[rank])
    torch.set_num_threads(len(cores[rank]))
    tp_group = TPGroup.join(store, rank=rank, size=len(cores), device="cpu")
    gc.disable()  # as in the engine's processes
    with torch.inference_mode():
        imitation = _Imitation(spec, tp_group, dtype=dtype)
        samples = {count: imitation.samples(count, num_samples) for count in rows}
    if tp_group.is_leader:
        answers.put(samples)
        tp_group.stop_followers()
    else:
        tp_group.receive_command()
    tp_group.close()


class _Imitation:
    """Products of a shard's sizes in the order of a forward, on weights as little cached as a model's."""

    def __init__(self, spec: ModelSpec, tp_group: TPGroup, *, dtype: torch.dtype) -> None:
        held = sharded(spec, tp_group.size)
        # One row's experts, as one network: what each rank computes between two sums, and how much it reads for that.
        inner = held.intermediate_size * (spec.experts.num_active if spec.experts else 1)
        self._spec, self._tp_group = spec, tp_group
        sizes = (
            (held.query_size + 2 * held.kv_size, spec.hidden_size),
            (spec.hidden_size, held.query_size),
            (2 * inner, spec.hidden_size),
            (spec.hidden_size, inner),
        )
        num_bytes = sum(width * depth for width, depth in sizes) * dtype.itemsize
        copies = min(spec.num_layers, num_copies(num_bytes, cache_bytes(torch.device("cpu"))))
        self._layers = [[_product(*size, dtype=dtype) for size in sizes] for _ in range(copies)]
        self._head = _product(held.vocab_size, spec.hidden_size, dtype=dtype)

    def samples(self, rows: int, num_samples: int) -> Samples:
        """Time every kind of forward in turn, so that a slow spell of the machine affects all of them."""
        silent, tp_group = NoOpTPGroup(self._tp_group), self._tp_group
        alone: list[_Times] = []
        in_step: list[_Times] = []
        told: list[_Times] = []
        for _ in range(_WARM_UP + num_samples):
            alone.append(self._forward(rows, silent, self._meet))
            in_step.append(self._forward(rows, tp_group, self._meet))
            told.append(self._forward(rows, tp_group, self._tell))
        told = told[_WARM_UP:]
        # Compared with medians, since rare delays are in the shards' own times as well.
        alone_s, in_step_s, told_s = map(_Times.medians, (alone[_WARM_UP:], in_step[_WARM_UP:], told))
        note_s = _above(told_s.layers_s - in_step_s.layers_s)
        num_sums = 2 * self._spec.num_layers
        return Samples(
            sums=[_above(times.layers_s - alone_s.layers_s - note_s) / num_sums for times in told],
            gathers=[_above(times.gather_s - alone_s.gather_s) for times in told],
            notes=[note_s],
        )

    def _forward(self, rows: int, tp_group: TPGroup, start: Callable[[], None]) -> _Times:
        start()
        start_s = time.perf_counter()
        for qkv, output, gate_up, down in islice(cycle(self._layers), self._spec.num_layers):
            qkv(rows)
            tp_group.all_reduce(output(rows))
            gate_up(rows)
            tp_group.all_reduce(down(rows))
        logits = self._head(rows)
        computed_s = time.perf_counter()
        tp_group.gather(logits, self._spec.vocab_size)
        return _Times(computed_s - start_s, time.perf_counter() - computed_s)

    def _meet(self) -> None:
        self._tp_group.all_reduce(torch.zeros(1))

    def _tell(self) -> None:
        """Start of a forward: the leader, after other work, sends what to keep and what to run."""
        if not self._tp_group.is_leader:
            self._tp_group.receive_command()
            self._tp_group.receive_command()
            return
        busy_until_s = time.perf_counter() + _BUSY_S
        while time.perf_counter() < busy_until_s:
            pass
        self._tp_group.broadcast(_NOTE)
        self._tp_group.broadcast(_NOTE)


def _product(width: int, depth: int, *, dtype: torch.dtype) -> Callable[[int], Tensor]:
    """A linear layer with its input, of any number of rows; the values do not matter."""
    linear, inputs = Linear(torch.randn(width, depth), None, dtype=dtype), torch.zeros(max(ROWS), depth, dtype=dtype)
    return lambda rows: linear(inputs[:rows])


def _above(seconds: float) -> float:
    """Clip to a positive value: noise makes the difference of tiny costs negative."""
    return max(seconds, _LEAST_S)
