"""TensorRT-LLM, PyTorch backend."""

from collections.abc import Sequence
from typing import Final

from swiftspec.devices import BLACKWELL
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.words import (
    CommandWords,
    ImitationWords,
    LengthRange,
    Method,
    MethodWords,
    ScheduleWords,
    Value,
    Words,
)
from swiftspec.scheduler.step_rules import StepRule


def _upper_bounds(schedule: Sequence[LengthRange]) -> dict[int, int]:
    return {each.last: each.num_draft_tokens for each in schedule if each.num_draft_tokens}


def _drafter(decoding_type: str, *, settings: Words | None = None) -> MethodWords:
    words: Words = {
        "decoding_type": decoding_type,
        "max_draft_len": Value.DRAFT_TOKENS,
        "speculative_model": Value.DRAFT,
    }
    return MethodWords(words=words, settings=settings or {})


_STEP_BY_STEP: Words = {"disable_overlap_scheduler": True}  # as its guide has it for these two methods
_KEYS = (
    "Keys of draft_len_schedule are the last batch size of each length, and above the largest nothing is drafted; "
    "releases from before March 2026 read them as the first one and want a key 1."
)
_MEAN_ONLY = "Acceptance by position: TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS is a mean, without the bonus token."

TRTLLM: Final = Engine(
    name="trtllm",
    full_name="TensorRT-LLM",
    release=(1, 4, 0),
    # From 1.2 on the first release candidates, which public benchmarks ran.
    published={
        "0.14.0": "2024-09-10",
        "0.17.0": "2024-12-17",
        "0.20.0": "2025-06-19",
        "1.0.0": "2025-09-24",
        "1.2.0": "2025-11-07",
        "1.3.0": "2026-01-22",
        "1.4.0": "2026-10-13",
    },
    rule=StepRule.DECODES_FIRST,
    op_tables="trtllm",
    collective="trtllm",
    # tensorrt_llm/llmapi/llm_args.py: max_num_tokens 8192, max_batch_size 2048.
    large_limits=StepLimits(step_tokens=8192, requests=2048, prefix_block=32, captured_tokens=2048),
    words={
        "max_num_tokens": "step_tokens",
        "max_batch_size": "requests",
        "tokens_per_block": "prefix_block",
        "enable_block_reuse": "prefix_cache",
        "disable_overlap_scheduler": "runs_step_by_step",
        "kv_cache_dtype": "kv_dtype",  # of kv_cache_config its dtype
        "timeout_iters": "prompt_wait",  # of attention_dp_config with enable_balance, which is off by default
    },
    ahead_since=(0, 20),
    # Its checkpoints in these formats keep keys and values in fp8 (also those of public benchmarks).
    fp8_cache=frozenset({"fp8", "mxfp4", "nvfp4"}),
    # On Blackwell its own kernels are trtllm-gen's, which SGLang's table has; its own table has DeepGEMM's.
    own_experts={f"{device}:fp8": "sglang" for device in BLACKWELL},
    attention_dp="whole",  # docs/source/features/parallel-strategy.md of 1.4
    methods={
        Method.MODEL: _drafter("Draft_Target", settings=_STEP_BY_STEP),
        Method.PARD: _drafter("PARD"),
        Method.EAGLE3: _drafter("Eagle3"),
        Method.MTP: _drafter("MTP"),
        Method.DFLASH: _drafter("DFlash"),
        Method.DSPARK: _drafter("DSpark"),
        Method.PROMPT_LOOKUP: MethodWords(
            # A request's own text only, and of several earlier occurrences the latest, as the policy has it.
            words={
                "decoding_type": "NGram",
                "max_draft_len": Value.DRAFT_TOKENS,
                "max_matching_ngram_size": Value.LONGEST_MATCH,
                "is_public_pool": False,
                "is_keep_all": True,
                "is_use_oldest": False,
            },
            settings=_STEP_BY_STEP,
        ),
    },
    schedule=ScheduleWords(words={"draft_len_schedule": Value.SCHEDULE}, write=_upper_bounds, falls=True, remark=_KEYS),
    imitation=ImitationWords(
        draft_words={"load_format": "dummy"},
        environment={"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": Value.ACCEPTED_TOKENS},
        lost=_MEAN_ONLY,
    ),
    command=CommandWords(
        release="1.4.0rc1",
        program=("trtllm-serve", Value.TARGET),
        options={
            "--tp_size": Value.DEGREE,
            "--max_batch_size": Value.MAX_RUNNING_OF_RANK,
            "--max_num_tokens": Value.STEP_TOKENS,
            "--max_seq_len": Value.MAX_CONTEXT,
            "--config": Value.FILE,
        },
        file="trtllm.yaml",
        settings={
            "dtype": Value.DTYPE,
            "enable_attention_dp": Value.HAS_RANKS,
            "moe_expert_parallel_size": Value.EXPERT_DEGREE,
            "disable_overlap_scheduler": Value.STEP_BY_STEP,
            "kv_cache_config": {
                "dtype": Value.KV_DTYPE,
                "enable_block_reuse": Value.REUSES_BLOCKS,
                "free_gpu_memory_fraction": Value.FREE_SHARE,
                "tokens_per_block": Value.BLOCK,
            },
            "attention_dp_config": {"enable_balance": Value.WAITS, "timeout_iters": Value.PROMPT_WAIT},
        },
        speculation="speculative_config",
        quantises=False,
    ),
    source="TensorRT-LLM 1.2.0: tensorrt_llm/llmapi/llm_args.py",
)
