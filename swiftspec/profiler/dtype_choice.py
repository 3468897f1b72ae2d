"""Choice of `--dtype auto`, which depends on CPU and model, by the seconds of single forwards before a profile."""

import time
from collections.abc import Mapping, Sequence

import torch

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.policies.effects import ForwardKind, Row

# Of one row, as a draft or plain decoding computes, and of as many as a verification has.
_ROWS = (1, 8)
# float32 is exact: bfloat16, which rounds activations, must be faster by more than two measurements differ.
_WORTH_ROUNDING = 1.05
_PROMPT_LENGTH = 32
_REPEATS = 7


def choose_dtype(reference: ModelRef) -> str:
    """float32, or bfloat16 if its forwards take clearly less on one core. A head, which needs a target, has float32."""
    if draft_facts(reference.model).kind.reads_target:
        return "float32"
    timed = (forward_seconds(reference.model_copy(update={"dtype": dtype}), _ROWS) for dtype in ("float32", "bfloat16"))
    exact_s, rounded_s = (sum(min(seconds) for seconds in of_dtype.values()) for of_dtype in timed)
    return "bfloat16" if rounded_s * _WORTH_ROUNDING < exact_s else "float32"


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
