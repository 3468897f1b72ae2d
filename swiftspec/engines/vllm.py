"""vLLM, V1 engine."""

from typing import Final

from swiftspec.engines.description import Engine, StepLimits
from swiftspec.scheduler.step_rules import DECODES_FIRST

__all__ = ["VLLM"]

VLLM: Final = Engine(
    name="vllm",
    full_name="vLLM",
    release=(0, 33, 0),
    rule=DECODES_FIRST,
    op_tables="vllm",
    collective="vllm_custom",
    # vllm/engine/arg_utils.py: H100-class devices have at least 70 GiB and are no A100.
    large_limits=StepLimits(step_tokens=8192, requests=1024),
    small_limits=StepLimits(step_tokens=2048, requests=256),
    words={
        "max_num_batched_tokens": "step_tokens",
        "max_num_seqs": "requests",
        "block_size": "prefix_block",
        "enable_prefix_caching": "prefix_cache",
        "no_enable_prefix_caching": "no_prefix_cache",
        "async_scheduling": "runs_ahead",
        "no_async_scheduling": "runs_step_by_step",
        "max_cudagraph_capture_size": "captured_tokens",
    },
    blocks_given_up=1,  # vllm/v1/core/kv_cache_coordinator.py: for EAGLE and MTP
    covers_requests=True,  # vllm/config/scheduler.py
    # By default since 0.14; in 0.11 to 0.13 by --async-scheduling, with which public benchmarks of these were run.
    ahead_since=(0, 11),
    graphs_prompts=True,  # in pieces between attention
    # On Blackwell, experts in mxfp4 are trtllm-gen's kernels with activations in mxfp8, as in SGLang's table.
    own_experts={"b200:mxfp4": "sglang"},
    # Its recipe for gpt-oss on Blackwell has --kv-cache-dtype fp8 (vllm-project/recipes, OpenAI/GPT-OSS.md).
    fp8_cache=frozenset({"b200:mxfp4"}),
    source="vLLM 0.15.1 and 0.32.0: vllm/engine/arg_utils.py, vllm/v1/core/sched/scheduler.py",
)
