"""Ranks of a TP group as real processes that run given jobs, forked from one that has imported this module."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftspec.engine.model.cpu import model as cpu_model
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.forward_batch import Chunk, Entry, ForwardBatch, Model, Rows
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import reference_ops
from swiftspec.engine.model.gpu.weights import FORMATS
from swiftspec.engine.model.runner import Decoder, ModelRunner
from swiftspec.engine.model.sharded_model import ShardedModel, follow
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.inflation import Inflation
from swiftspec.policies.effects import ForwardKind, Role, Row
from swiftspec.profiler.helper_processes import forkserver
from tests.engine.forwards import prefill

DEADLINE_S = 60.0
PROMPT = tuple(token % 83 for token in range(7, 290))  # several chunks, and more than fits into a note
AT = len(PROMPT)
TREE = (Row(3, AT, 0), Row(5, AT + 1, 0b1), Row(8, AT + 1, 0b1), Row(13, AT + 2, 0b101))
KEPT_TREE = (Row(21, AT + 3, 0b1), Row(34, AT + 4, 0b11))
HALVES = (Row(55, AT + 5, 0),)
NUM_SEQUENCES = 3
NUM_BATCHES = 8

_joined: list[TPGroup] = []  # of this process

Job = Callable[..., Any]


class Ranks:
    """A TP group's processes."""

    def __init__(self, processes: list[ProcessPoolExecutor]) -> None:
        self._processes = processes

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, job: Job, *arguments: Any) -> list[Future[Any]]:
        """`job(tp_group, *arguments)` on every rank."""
        return [process.submit(_with_tp_group, job, arguments) for process in self._processes]

    def run(self, job: Job, *arguments: Any) -> list[Any]:
        """Answers of `job(tp_group, *arguments)` on all ranks."""
        return [future.result(timeout=DEADLINE_S) for future in self.start(job, *arguments)]


@contextmanager
def joined_ranks(size: int, store: str | None = None) -> Iterator[Ranks]:
    """Processes that have joined one TP group, by a file unless there is a store."""
    with tempfile.TemporaryDirectory() as folder:
        address = store or f"file://{folder}/store"
        context = forkserver(__name__)
        processes = [ProcessPoolExecutor(1, mp_context=context) for _ in range(size)]
        try:
            joining = [process.submit(_join, address, rank, size) for rank, process in enumerate(processes)]
            for future in joining:
                future.result(timeout=DEADLINE_S)
            yield Ranks(processes)
        finally:
            for process in processes:
                with suppress(Exception):  # one that a test has ended
                    process.submit(_leave)
            for process in processes:
                process.shutdown(wait=True)


def _join(store: str, rank: int, size: int) -> None:

    torch.set_num_threads(1)
    _joined.append(TPGroup.join(store, rank=rank, size=size, device="cpu"))


def _leave() -> None:
    while _joined:
        _joined.pop().close()


def _with_tp_group(job: Job, arguments: tuple[Any, ...]) -> Any:
    return job(_joined[-1], *arguments)


def decoder_of(kind: str, directory: Path, tp_group: TPGroup, inflation: Inflation | None = None) -> Decoder:
    """A `CpuDecoder` ("packed"; "torch": without kernels) or a `GpuDecoder` ("static"), in fp32 on the CPU."""
    if kind == "torch":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cpu_model, "load_library", lambda: None)
            return CpuDecoder(directory, tp_group=tp_group, inflation=inflation)
    if kind == "packed":
        return CpuDecoder(directory, tp_group=tp_group, inflation=inflation)
    chosen = FORMATS["float32"]
    return GpuDecoder.load(directory, weight_format=chosen, ops=reference_ops(), tp_group=tp_group, inflation=inflation)


Script = Callable[[Mapping[Role, Model]], list[torch.Tensor]]


def led(tp_group: TPGroup, kind: str, directories: Mapping[Role, Path], script: Script) -> Any:
    """Answer of a script with models whose shards are on all ranks; only the leader runs it."""
    models: dict[Role, Model] = {}
    for role, directory in directories.items():
        decoder = decoder_of(kind, directory, tp_group)
        models[role] = ModelRunner(decoder, [decoder.new_cache(400) for _ in range(NUM_SEQUENCES)])
    if not tp_group.is_leader:
        return follow(models, tp_group)
    try:
        return script({role: ShardedModel(model, tp_group, role) for role, model in models.items()})
    finally:
        tp_group.stop_followers()


def whole_request(models: Mapping[Role, Model]) -> list[Tensor]:
    """The logits of all that a program may ask of its models, which take turns."""
    steps = {role: _asked(model) for role, model in models.items()}
    return [logits for _ in range(NUM_BATCHES) for step in steps.values() for logits in next(step)]


def _asked(model: Model) -> Iterator[list[Tensor]]:
    """The answers to `NUM_BATCHES` batches, of one sequence and of several."""
    for sequence in range(NUM_SEQUENCES):
        model.reset(sequence)
    yield _answers(model, ForwardKind.EXACT, Chunk(0, PROMPT))
    yield _answers(model, ForwardKind.EXACT, Rows(0, TREE), Chunk(1, PROMPT[:5]), Chunk(2, PROMPT[9:150]))
    model.keep(0, (0, 2, 3), 2)  # two join the prefix, and the third is the tree
    yield _answers(model, ForwardKind.EXACT, Rows(2, (Row(3, 141, 0),)), Rows(0, KEPT_TREE), _scored(1, PROMPT[5:8]))
    model.keep(0, (0, 1, 2), 3)
    halves = Rows(0, HALVES), Rows(1, (Row(4, 8, 0), Row(6, 9, 0b1)))
    yield _answers(model, ForwardKind.FIRST_HALF, *halves)
    yield _answers(model, ForwardKind.SECOND_HALF, *halves)
    model.keep(0, (), 0)
    for refused in (Chunk(0, PROMPT * 2), Chunk(2, PROMPT[:2]), Rows(NUM_SEQUENCES, HALVES)):
        with pytest.raises(ValueError, match="sequence"):  # which the followers survive
            _answers(model, ForwardKind.EXACT, Rows(1, TREE), refused)
    yield _answers(model, ForwardKind.LAYER_PARALLEL, Rows(2, (Row(1, 142, 0b1),)), Rows(0, HALVES))
    model.reset(0)
    yield _answers(model, ForwardKind.EXACT, Chunk(0, PROMPT[:3]))
    model.keep(1, (0, 1), 1)
    yield _answers(model, ForwardKind.EXACT, Rows(1, (Row(7, 10, 0b1),)), Rows(0, (Row(7, 3, 0),)))


def _scored(sequence: int, tokens: tuple[int, ...]) -> Chunk:
    return Chunk(sequence, tokens, all_logits=True)


def _answers(model: Model, kind: ForwardKind, *entries: Entry) -> list[Tensor]:
    return [logits.clone() for logits in model.forward(ForwardBatch(kind, entries)).logits]


def last_logits(tp_group: TPGroup, directory: Path, inflation: Inflation | None) -> Tensor:
    decoder = decoder_of("packed", directory, tp_group, inflation)
    return prefill(decoder, [1, 2, 3], decoder.new_cache(8))
