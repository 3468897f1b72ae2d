"""`--dtype auto`: the faster dtype depends on the CPU and on the model, so it is measured for each."""

from swiftspec.files.document import ModelRef
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.profiler.forward_time import forward_seconds

__all__ = ["choose_dtype"]

# Of one row, as a draft or plain decoding computes, and of as many as a verification has.
_ROWS = (1, 8)
# float32 is exact: bfloat16, which rounds activations, must be faster by more than two measurements differ.
_WORTH_ROUNDING = 1.05


def choose_dtype(reference: ModelRef) -> str:
    """float32, or bfloat16 if its forwards take clearly less time on one core. Never a quantisation.

    A head, whose forwards need a target, gets float32.
    """
    if draft_facts(reference.model).kind.reads_target:
        return "float32"
    exact_s, rounded_s = (
        _forward_s(reference.model_copy(update={"dtype": dtype})) for dtype in ("float32", "bfloat16")
    )
    return "bfloat16" if rounded_s * _WORTH_ROUNDING < exact_s else "float32"


def _forward_s(reference: ModelRef) -> float:
    return sum(min(seconds) for seconds in forward_seconds(reference, _ROWS).values())
