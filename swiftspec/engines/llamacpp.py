"""llama.cpp's server."""

from typing import Final

from swiftspec.engines.description import Engine, StepLimits
from swiftspec.scheduler.step_rules import DECODES_FIRST

__all__ = ["LLAMACPP"]

LLAMACPP: Final = Engine(
    name="llamacpp",
    full_name="llama.cpp",
    release=(),
    rule=DECODES_FIRST,
    op_tables=None,
    # tools/server: -ub 512 tokens of all slots together; four slots unless --parallel says otherwise.
    large_limits=StepLimits(step_tokens=512, requests=4, prefix_block=1),
    small_limits=StepLimits(step_tokens=512, requests=4, prefix_block=1),
    words={"ubatch_size": "step_tokens", "parallel": "requests"},
    source="llama.cpp, tools/server/README.md of November 2026",
)
