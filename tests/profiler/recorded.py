"""Short traces of small checkpoints, as they come back from a file."""

from pathlib import Path

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.profiler.acceptance import record_trace

_PROMPTS = (("a", (5, 17, 30)), ("b", (9,)))
_NUM_TOKENS = 20


def record_small(target: Path, draft: Path, folder: Path) -> AcceptanceTrace:
    """A trace of two prompts with 20 tokens each and three candidates, saved in `folder` and read again."""
    trace = record_trace(
        target=ModelRef(model=str(target), dtype="float32"),
        draft=ModelRef(model=str(draft), dtype="float32"),
        prompts=_PROMPTS,
        max_new_tokens=_NUM_TOKENS,
        num_candidates=3,
        num_threads=1,
        progress=lambda *_: None,
    )
    path = folder / "trace.npz"
    trace.save(path)
    return AcceptanceTrace.load(path)
