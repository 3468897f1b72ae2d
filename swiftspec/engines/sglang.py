"""SGLang, with its overlap scheduler."""

import json
from collections.abc import Sequence
from typing import Final

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

# The first speculative worker drafted and verified after the step before had ended. The second one could be switched on
# since 0.5.4 and is alone since June 2026 (pull requests 11643, 25464, 27964); public benchmarks of 0.5.12 ran it.
_SECOND_WORKER: Final = (0, 5, 12)


def _ladder(schedule: Sequence[LengthRange]) -> str:
    """Steps by the least batch size that they are for."""
    steps = {str(each.first): {"candidate_steps": [each.num_draft_tokens]} for each in schedule}
    return json.dumps(steps, indent=1) + "\n"


def _drafter(algorithm: str, *, block: bool = False) -> MethodWords:
    # Rows of a verification, not drafted tokens, are SGLang's "draft tokens"; a block has one step.
    steps: Words = {"--speculative-num-steps": Value.LEVELS, "--speculative-eagle-topk": Value.WIDTH}
    words: Words = {
        "--speculative-algorithm": algorithm,
        "--speculative-draft-model-path": Value.DRAFT,
        **({} if block else steps),
        "--speculative-num-draft-tokens": Value.VERIFIED_ROWS,
        "--speculative-draft-model-quantization": Value.OTHER_DRAFT_FORMAT,
    }
    return MethodWords(words=words, ahead_since=_SECOND_WORKER)


_MEAN_ONLY = (
    "Acceptance by position: SGLANG_SIMULATE_ACC_LEN is a mean, reached by rounds with the next lower and the next "
    "higher number of tokens."
)
_NEVER = (
    "Draft tokens by batch size: --speculative-adaptive is for EAGLE and EAGLE3 heads only; any other draft always "
    "writes as many."
)
_ADAPTIVE = (
    "SGLang looks draft tokens up by batch size in adaptive.json; each size has one number of steps there, so that "
    "acceptance changes nothing."
)
_PAGES = "--speculative-eagle-topk above 1 needs --page-size 1, or one of the backends flashinfer, fa3 and triton."

SGLANG: Final = Engine(
    name="sglang",
    full_name="SGLang",
    release=(0, 5, 23),
    published={
        "0.4.0": "2024-12-03",
        "0.4.4": "2025-03-13",
        "0.4.6": "2025-04-27",
        "0.4.9": "2025-07-06",
        "0.5.1": "2025-08-23",
        "0.5.4": "2025-10-24",
        "0.5.6": "2025-12-03",
        "0.5.8": "2026-01-23",
        "0.5.9": "2026-02-23",
        "0.5.10": "2026-04-05",
        "0.5.12": "2026-05-16",
        "0.5.14": "2026-06-26",
        "0.5.16": "2026-07-25",
        "0.5.18": "2026-08-21",
        "0.5.20": "2026-09-18",
        "0.5.23": "2026-10-30",
    },
    rule=StepRule.PROMPTS_FIRST,
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
        "kv_cache_dtype": "kv_dtype",
    },
    ahead_since=(0, 4),
    # Pull request 20547 measured 9,688 tokens/s with the first worker and 12,360 with the second: Qwen3-8B with DFlash
    # on a B200, 32 requests, 6.35 tokens a round.
    late_round_s=4.5e-3,
    # Checkpoints in nvfp4 state an fp8 cache, which it takes over (sglang/srt/model_executor/model_runner.py).
    fp8_cache=frozenset({"nvfp4"}),
    # sglang/srt/arg_groups/parallel_hook.py and mem_cache/kv_cache_configurator.py divide chunks and requests by ranks.
    attention_dp="divided",
    limits_of_all_ranks=True,
    eagle2_trees=True,
    tree_remark=_PAGES,
    # sglang/srt/arg_groups/fields/spec.py and speculative_hook.py
    methods={
        Method.MODEL: _drafter("STANDALONE"),
        Method.EAGLE: _drafter("EAGLE"),
        Method.EAGLE3: _drafter("EAGLE3"),
        Method.MTP: _drafter("NEXTN"),
        Method.DFLASH: _drafter("DFLASH", block=True),
        Method.DSPARK: _drafter("DSPARK", block=True),
        Method.PROMPT_LOOKUP: MethodWords(
            words={
                "--speculative-algorithm": "NGRAM",
                "--speculative-num-draft-tokens": Value.VERIFIED_ROWS,
                "--speculative-ngram-max-bfs-breadth": 1,
                "--speculative-ngram-max-trie-depth": Value.MATCH_AND_DRAFT,
            }
        ),
    },
    schedule=ScheduleWords(
        words={"--speculative-adaptive": True, "--speculative-adaptive-config": Value.SCHEDULE},
        write=_ladder,
        file="adaptive.json",
        methods=frozenset({Method.EAGLE3, Method.MTP}),
        only_others=_NEVER,
        remark=_ADAPTIVE,
    ),
    imitation=ImitationWords(
        draft_words={"--speculative-draft-load-format": "dummy"},
        environment={
            "SGLANG_SIMULATE_ACC_LEN": Value.ROUND_TOKENS,
            "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
            "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
        },
        lost=_MEAN_ONLY,
    ),
    command=CommandWords(
        release="0.5.23",
        fp8_cache="fp8_e4m3",
        program=("python3", "-m", "sglang.launch_server"),
        options={
            "--model-path": Value.TARGET,
            "--tp-size": Value.DEGREE,
            "--attn-dp-size": Value.RANKS,  # --dp-size N --enable-dp-attention in earlier releases
            "--ep-size": Value.EXPERT_DEGREE,
            "--dtype": Value.DTYPE,
            "--quantization": Value.TARGET_FP8,
            "--max-running-requests": Value.MAX_RUNNING,
            "--chunked-prefill-size": Value.STEP_TOKENS,
            "--context-length": Value.MAX_CONTEXT,
            "--mem-fraction-static": Value.STATIC_SHARE,
            "--kv-cache-dtype": Value.KV_DTYPE,
            "--disable-radix-cache": Value.NO_PREFIX_CACHE,
            "--page-size": Value.BLOCK,
            "--cuda-graph-max-bs": Value.CAPTURED,
            "--disable-overlap-schedule": Value.STEP_BY_STEP,
        },
    ),
    source="SGLang 0.5.12: sglang/srt/server_args.py, sglang/srt/managers/scheduler.py",
)
