"""SGLang, with its overlap scheduler."""

from typing import Final

from swiftspec.engines.description import Engine, StepLimits
from swiftspec.scheduler.step_rules import PROMPTS_FIRST

__all__ = ["SGLANG"]

SGLANG: Final = Engine(
    name="sglang",
    full_name="SGLang",
    release=(0, 5, 23),
    rule=PROMPTS_FIRST,
    op_tables="sglang",
    collective="sglang_custom",
    # sglang/srt/server_args.py: chunks of 8192 tokens on large devices; requests at once are bounded by memory.
    large_limits=StepLimits(step_tokens=8192, requests=2048, prefix_block=1),
    small_limits=StepLimits(step_tokens=2048, requests=2048, prefix_block=1),
    large_bytes=60 * 2**30,
    never_large=frozenset(),
    words={
        "chunked_prefill_size": "step_tokens",
        "max_running_requests": "requests",
        "page_size": "prefix_block",
        "disable_radix_cache": "no_prefix_cache",
        "disable_overlap_schedule": "runs_step_by_step",
        "cuda_graph_max_bs": "captured_tokens",
    },
    ahead_since=(0, 4),
    source="SGLang 0.5.12: sglang/srt/server_args.py, sglang/srt/managers/scheduler.py",
)
