"""vLLM, V1 engine."""

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


def _ranges(schedule: Sequence[LengthRange]) -> list[list[int]]:
    return [list(each) for each in schedule]


def _drafter(method: str, ahead_since: tuple[int, ...], *, parallel: bool = False, remark: str = "") -> MethodWords:
    words: Words = {
        "method": method,
        "model": Value.DRAFT,
        "num_speculative_tokens": Value.DRAFT_TOKENS,
        "draft_tensor_parallel_size": Value.DRAFT_DEGREE,
        **({"parallel_drafting": True} if parallel else {}),
        "quantization": Value.DRAFT_FP8,
    }
    return MethodWords(words=words, remark=remark, ahead_since=ahead_since)


_GRAPHS = (
    "The default model runner (V2) runs a separate draft without CUDA graphs, which predictions assume; "
    "VLLM_USE_V2_MODEL_RUNNER=0 chooses V1, which captures them but needs the draft's tensor-parallel size to be the "
    "target's."
)
_FALLS_BACK = "vLLM runs parallel drafts with its model runner V1."
_DRAFT_SERVER = (
    "The draft server and vLLM's environment both need this package. vLLM's interface for drafters is experimental: it "
    "was tried with 0.32."
)
_SUFFIX = (
    "vLLM's suffix decoding needs the package arctic-inference. As predicted outputs of earlier requests are not kept. "
    "Without suffix_decoding_max_cached_requests those of 10,000 are, which helps where requests resemble each other."
)

VLLM: Final = Engine(
    name="vllm",
    full_name="vLLM",
    release=(0, 33, 0),
    published={
        "0.6.0": "2024-09-05",
        "0.7.0": "2025-01-27",
        "0.8.0": "2025-03-18",
        "0.9.0": "2025-05-28",
        "0.10.0": "2025-07-25",
        "0.11.0": "2025-10-04",
        "0.12.0": "2025-12-03",
        "0.13.0": "2025-12-19",
        "0.14.0": "2026-01-20",
        "0.15.0": "2026-01-29",
        "0.16.0": "2026-02-26",
        "0.18.0": "2026-03-20",
        "0.20.0": "2026-04-27",
        "0.22.0": "2026-05-29",
        "0.24.0": "2026-06-30",
        "0.26.0": "2026-07-25",
        "0.28.0": "2026-08-26",
        "0.30.0": "2026-09-22",
        "0.31.0": "2026-10-05",
        "0.33.0": "2026-11-02",
    },
    rule=StepRule.DECODES_FIRST,
    op_tables="vllm",
    collective="vllm_custom",
    # vllm/engine/arg_utils.py: H100-class devices have at least 70 GiB and are no A100.
    large_limits=StepLimits(step_tokens=8192, requests=1024),
    small_limits=StepLimits(step_tokens=2048, requests=256),
    # vllm/platforms/cpu.py and the same file, 0.32: of one socket; no async scheduling.
    cpu_limits=StepLimits(step_tokens=2048, requests=128, prefix_block=128, runs_ahead=False, captured_tokens=0),
    words={
        "max_num_batched_tokens": "step_tokens",
        "max_num_seqs": "requests",
        "block_size": "prefix_block",
        "enable_prefix_caching": "prefix_cache",
        "no_enable_prefix_caching": "no_prefix_cache",
        "async_scheduling": "runs_ahead",
        "no_async_scheduling": "runs_step_by_step",
        "max_cudagraph_capture_size": "captured_tokens",
        "kv_cache_dtype": "kv_dtype",
        "gpu_memory_utilization": "memory_share",
    },
    blocks_given_up=1,  # vllm/v1/core/kv_cache_coordinator.py: for EAGLE and MTP
    covers_requests=True,  # vllm/config/scheduler.py
    # By default since 0.14; in 0.11 to 0.13 by --async-scheduling, with which public benchmarks of these were run.
    ahead_since=(0, 11),
    graphs_prompts=True,  # in pieces between attention
    # On Blackwell, experts in mxfp4 are trtllm-gen's kernels with activations in mxfp8, as in SGLang's table.
    own_experts={f"{device}:mxfp4": "sglang" for device in BLACKWELL},
    # Its recipe for gpt-oss on Blackwell has --kv-cache-dtype fp8 (vllm-project/recipes, OpenAI/GPT-OSS.md).
    # Checkpoints in nvfp4 state an fp8 cache, which it takes over (vllm/utils/torch_utils.py).
    fp8_cache=frozenset({"nvfp4", *(f"{device}:mxfp4" for device in BLACKWELL)}),
    leaves_draft_whole=True,
    # docs/serving/data_parallel_deployment.md of 0.12: experts are divided by DP x TP, or whole on each device of it.
    attention_dp="divided",
    # Pull request 25872 measured steps of 27.17 ms instead of 28.14 with async scheduling (Llama-3.1-8B, EAGLE-3, L20).
    late_s=1.0e-3,
    late_round_s=1.0e-3,
    # vllm/config/speculative.py. Async scheduling with drafts: pull requests 31998, 48341 and 58065, from the first
    # release after each on; never with drafts that the host makes.
    methods={
        Method.MODEL: _drafter("draft_model", (0, 26), remark=_GRAPHS),
        Method.PARD: _drafter("draft_model", (0, 26), parallel=True, remark=_FALLS_BACK),
        Method.EAGLE: _drafter("eagle", (0, 14)),
        Method.EAGLE3: _drafter("eagle3", (0, 14)),
        Method.P_EAGLE: _drafter("eagle3", (0, 14), parallel=True, remark=_FALLS_BACK),
        Method.MTP: _drafter("mtp", (0, 14)),
        Method.DFLASH: _drafter("dflash", (0, 31)),
        Method.DSPARK: _drafter("dspark", ()),
        Method.PROMPT_LOOKUP: MethodWords(
            words={
                "method": "ngram",
                "num_speculative_tokens": Value.DRAFT_TOKENS,
                "prompt_lookup_max": Value.LONGEST_MATCH,
                "prompt_lookup_min": 1,
            },
            ahead_since=None,
        ),
        Method.SUFFIX: MethodWords(
            words={
                "method": "suffix",
                "num_speculative_tokens": Value.DRAFT_TOKENS,
                "suffix_decoding_max_tree_depth": Value.SUFFIX_DEPTH,
                "suffix_decoding_max_spec_factor": Value.SUFFIX_FACTOR,
                "suffix_decoding_min_token_prob": Value.SUFFIX_PROBABILITY,
                "suffix_decoding_max_cached_requests": 0,
            },
            remark=_SUFFIX,
            ahead_since=None,
        ),
        Method.DRAFT_SERVER: MethodWords(
            words={
                "method": "custom_class",
                "model": "swiftspec.drafter.Drafter",
                "num_speculative_tokens": Value.DRAFT_TOKENS,
            },
            options={"--additional-config": Value.DRAFTER_SETTINGS},
            remark=_DRAFT_SERVER,
            ahead_since=None,
        ),
    },
    schedule=ScheduleWords(words={"num_speculative_tokens_per_batch_size": Value.SCHEDULE}, write=_ranges),
    imitation=ImitationWords(
        words={"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": Value.RATES},
        draft_words={"draft_load_config": {"load_format": "dummy"}},
    ),
    command=CommandWords(
        release="0.33.0",
        program=("vllm", "serve", Value.TARGET),
        module=("-m", "vllm.entrypoints.openai.api_server", "--model", Value.TARGET),
        cpu_options=("--enforce-eager",),  # compiled, a start takes minutes
        cpu_environment={"VLLM_CPU_KVCACHE_SPACE": "2"},  # GB; most of the memory without
        options={
            "--tensor-parallel-size": Value.RANK_DEGREE,
            "--data-parallel-size": Value.RANKS,
            "--enable-expert-parallel": Value.WHOLE_EXPERTS,
            "--dtype": Value.DTYPE,
            "--quantization": Value.TARGET_FP8,
            "--max-num-seqs": Value.MAX_RUNNING_OF_RANK,
            "--max-num-batched-tokens": Value.STEP_TOKENS,
            "--max-model-len": Value.MAX_CONTEXT,
            "--gpu-memory-utilization": Value.MEMORY_SHARE,
            "--kv-cache-dtype": Value.KV_DTYPE,
            "--enable-prefix-caching": Value.PREFIX_CACHE,
            "--no-enable-prefix-caching": Value.NO_PREFIX_CACHE,
            "--block-size": Value.BLOCK,
            "--max-cudagraph-capture-size": Value.CAPTURED,
            "--no-async-scheduling": Value.STEP_BY_STEP,
        },
        speculation="--speculative-config",
    ),
    source="vLLM 0.15.1 and 0.32.0: vllm/engine/arg_utils.py, vllm/v1/core/sched/scheduler.py",
)
