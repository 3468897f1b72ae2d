"""vLLM's command line: `vllm serve --speculative-config`. Source: vllm/config/speculative.py of the release."""

import json
from typing import Any

from swiftspec.export.served import Command, Served
from swiftspec.policies.effects import Role
from swiftspec.policies.prompt_lookup import PromptLookup

__all__ = ["vllm_command"]

_GRAPHS = (
    "The default model runner (V2) runs a separate draft without CUDA graphs, which predictions assume; "
    "VLLM_USE_V2_MODEL_RUNNER=0 chooses V1, which captures them but needs the draft's tensor-parallel size to be the "
    "target's."
)


def vllm_command(served: Served) -> Command:
    """Options of `vllm serve`; the speculation as JSON."""
    speculation = _speculation(served)
    options = ["--tensor-parallel-size", str(served.degree)]
    if served.dtype is not None:
        options += ["--dtype", served.dtype]
    if served.quantisation.get(Role.TARGET) == "fp8":
        options += ["--quantization", "fp8"]
    if served.max_running is not None:
        options += ["--max-num-seqs", str(served.max_running)]
    if speculation:
        options += ["--speculative-config", json.dumps(speculation)]
    return Command(
        arguments=("vllm", "serve", served.target, *options),
        configuration=speculation,
        schedule=served.schedule,
        remarks=(_GRAPHS,) if served.draft is not None else (),
    )


def _speculation(served: Served) -> dict[str, Any]:
    policy, tokens = served.policy, served.num_draft_tokens
    if isinstance(policy, PromptLookup):
        found: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": tokens}
        return found | {"prompt_lookup_max": policy.longest_match, "prompt_lookup_min": 1}
    if served.draft is None:
        return {}
    found = {
        "method": "draft_model",
        "model": served.draft,
        "num_speculative_tokens": tokens,
        "draft_tensor_parallel_size": served.draft_degree,
    }
    if served.quantisation.get(Role.DRAFT) == "fp8":
        found["quantization"] = "fp8"
    if served.schedule:
        found["num_speculative_tokens_per_batch_size"] = [list(each) for each in served.schedule]
    if served.rates is not None:
        found |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [round(rate, 4) for rate in served.rates],
            "draft_load_config": {"load_format": "dummy"},
        }
    return found
