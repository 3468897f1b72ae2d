"""This package's own engine."""

from typing import Final

from swiftspec.engines.description import Engine, StepLimits
from swiftspec.scheduler.step_rules import StepRule

SWIFTSPEC: Final = Engine(
    name="swiftspec",
    full_name="swiftspec",
    release=(),
    rule=StepRule.DRAFTS_FIRST,
    kernels="swiftspec, with the op tables' kernels, the fastest all-reduce and the least host time assumed",
    op_tables=None,
    # scheduler/batching.py: its kernels verify at most 64 rows at once, and read 128 tokens of prompts beside them.
    large_limits=StepLimits(step_tokens=192, requests=64, prefix_block=0, captured_tokens=64),
    cpu_limits=StepLimits(step_tokens=192, requests=64, prefix_block=0, runs_ahead=False, captured_tokens=0),
    words={"max_running": "requests"},
    divides_heads=False,  # it pads them
    # On a CPU: medians of profiles/demo-zen4-2-cores, rounded.
    effects_s={
        "expand": 60e-6,
        "fuzzy": 45e-6,
        "verify": 50e-6,
        "exit": 30e-6,
        "finish": 5e-6,
        "send": 180e-6,
        "wait": 140e-6,
        "commit": 180e-6,
        "compact": 35e-6,
    },
    host_share=0.3,  # on two Sapphire Rapids cores it was 0.04 to 0.38 by policy
    source="this package: scheduler/batching.py",
)
