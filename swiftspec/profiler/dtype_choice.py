"""`--dtype auto`: which dtype is faster is a property of the CPU, so it is measured."""

import time

import torch

from swiftspec.artifacts.document import ModelRef
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.policies.effects import Row

__all__ = ["choose_dtype"]

_DTYPES = ("bfloat16", "float32")
_PROMPT_LENGTH = 32
_REPEATS = 7


@torch.inference_mode()
def choose_dtype(*, model: str, inflate: str | None, rows: int = 8) -> str:
    """The dtype in which one forward of `rows` rows takes less time on one core."""
    torch.set_num_threads(1)
    return min(_DTYPES, key=lambda dtype: _forward_s(ModelRef(model=model, inflate=inflate, dtype=dtype), rows))


def _forward_s(reference: ModelRef, num_rows: int) -> float:
    model = ModelRunner.load(reference, max_context=_PROMPT_LENGTH, tree_slots=num_rows)
    model.prefill((1,) * _PROMPT_LENGTH)
    rows = tuple(Row(1, _PROMPT_LENGTH + i, (1 << i) - 1) for i in range(num_rows))
    seconds = []
    for _ in range(_REPEATS):
        start_s = time.perf_counter()
        model.forward(rows)
        seconds.append(time.perf_counter() - start_s)
        model.keep((), 0)
    return min(seconds)
