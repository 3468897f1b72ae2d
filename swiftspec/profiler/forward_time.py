"""Seconds of single forwards of a model, measured in this process: a quick estimate before a profile."""

import time
from collections.abc import Mapping, Sequence

import torch

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import ForwardKind, Row

__all__ = ["forward_seconds"]

_PROMPT_LENGTH = 32
_REPEATS = 7


@torch.inference_mode()
def forward_seconds(reference: ModelRef, row_counts: Sequence[int]) -> Mapping[int, Sequence[float]]:
    """Seconds of some forwards on one core, by number of rows, after a short prefix; the first ones are discarded."""
    torch.set_num_threads(1)
    model = ModelRunner.load(reference, max_context=_PROMPT_LENGTH, tree_slots=max(row_counts))
    model.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, (1,) * _PROMPT_LENGTH),)))
    _, *turns = ([_timed(model, num_rows) for num_rows in row_counts] for _ in range(1 + _REPEATS))
    return dict(zip(row_counts, zip(*turns, strict=True), strict=True))


def _timed(model: ModelRunner, num_rows: int) -> float:
    rows = tuple(Row(1, _PROMPT_LENGTH + i, (1 << i) - 1) for i in range(num_rows))
    batch = ForwardBatch(ForwardKind.EXACT, (Rows(0, rows),))
    start_s = time.perf_counter()
    model.forward(batch)
    seconds = time.perf_counter() - start_s
    model.keep(0, (), 0)
    return seconds
