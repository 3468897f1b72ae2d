"""`--dtype auto`: the faster dtype depends on the CPU, so it is measured."""

from swiftspec.artifacts.document import ModelRef
from swiftspec.profiler.forward_time import forward_seconds

__all__ = ["choose_dtype"]

_DTYPES = ("bfloat16", "float32")


def choose_dtype(*, model: str, inflate: str | None, rows: int = 8) -> str:
    """The dtype in which one forward of `rows` rows takes less time on one core."""
    return min(_DTYPES, key=lambda dtype: _forward_s(ModelRef(model=model, inflate=inflate, dtype=dtype), rows))


def _forward_s(reference: ModelRef, num_rows: int) -> float:
    return min(forward_seconds(reference, [num_rows])[num_rows])
