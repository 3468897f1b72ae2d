"""This package's own engine."""

from typing import Final

from swiftspec.engines.description import Engine, StepLimits
from swiftspec.scheduler.step_rules import DRAFTS_FIRST

__all__ = ["SWIFTSPEC"]

SWIFTSPEC: Final = Engine(
    name="swiftspec",
    full_name="swiftspec",
    release=(),
    rule=DRAFTS_FIRST,
    kernels="swiftspec, with the op tables' kernels, the fastest all-reduce and the least host time assumed",
    op_tables=None,
    # scheduler/batching.py: its kernels verify at most 64 rows at once, and read 128 tokens of prompts beside them.
    large_limits=StepLimits(step_tokens=192, requests=64, prefix_block=0, captured_tokens=64),
    small_limits=StepLimits(step_tokens=192, requests=64, prefix_block=0, captured_tokens=64),
    words={"max_running": "requests"},
    source="this package: scheduler/batching.py",
)
