"""TensorRT-LLM, PyTorch backend."""

from typing import Final

from swiftspec.engines.description import Engine, StepLimits
from swiftspec.scheduler.step_rules import DECODES_FIRST

__all__ = ["TRTLLM"]

TRTLLM: Final = Engine(
    name="trtllm",
    full_name="TensorRT-LLM",
    release=(1, 4, 0),
    rule=DECODES_FIRST,
    op_tables="trtllm",
    collective="trtllm",
    # tensorrt_llm/llmapi/llm_args.py: max_num_tokens 8192, max_batch_size 2048.
    large_limits=StepLimits(step_tokens=8192, requests=2048, prefix_block=32, captured_tokens=2048),
    small_limits=StepLimits(step_tokens=8192, requests=2048, prefix_block=32, captured_tokens=2048),
    words={
        "max_num_tokens": "step_tokens",
        "max_batch_size": "requests",
        "tokens_per_block": "prefix_block",
        "enable_block_reuse": "prefix_cache",
        "disable_overlap_scheduler": "runs_step_by_step",
    },
    ahead_since=(0, 20),
    # Its checkpoints in these formats keep keys and values in fp8 (also those of public benchmarks).
    fp8_cache=frozenset({"fp8", "mxfp4"}),
    # On Blackwell its own kernels are trtllm-gen's, which SGLang's table has; its own table has DeepGEMM's.
    own_experts={"b200:fp8": "sglang"},
    source="TensorRT-LLM 1.2.0: tensorrt_llm/llmapi/llm_args.py",
)
