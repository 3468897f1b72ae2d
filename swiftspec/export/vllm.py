"""vLLM's command line: `vllm serve --speculative-config`. Source: vllm/config/speculative.py of the release."""

import json
from collections.abc import Iterator
from typing import Any

from swiftspec.export.drafters import Drafter
from swiftspec.export.served import Command, Served
from swiftspec.policies.effects import Role
from swiftspec.policies.prompt_lookup import PromptLookup
from swiftspec.policies.suffix_decoding import SuffixDecoding

__all__ = ["vllm_command"]

_GRAPHS = (
    "The default model runner (V2) runs a separate draft without CUDA graphs, which predictions assume; "
    "VLLM_USE_V2_MODEL_RUNNER=0 chooses V1, which captures them but needs the draft's tensor-parallel size to be the "
    "target's."
)
_FALLS_BACK = "vLLM runs {what} with its model runner V1."
_SUFFIX = (
    "vLLM's suffix decoding needs the package arctic-inference. As predicted outputs of earlier requests are not kept. "
    "Without suffix_decoding_max_cached_requests those of 10,000 are, which helps where requests resemble each other."
)
_METHODS = {
    Drafter.MODEL: "draft_model",
    Drafter.PARD: "draft_model",
    Drafter.EAGLE3: "eagle3",
    Drafter.P_EAGLE: "eagle3",
    Drafter.MTP: "mtp",
    Drafter.DFLASH: "dflash",
    Drafter.DSPARK: "dspark",
}
_PARALLEL = (Drafter.PARD, Drafter.P_EAGLE)


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
        remarks=tuple(_remarks(served)),
    )


def _remarks(served: Served) -> Iterator[str]:
    if served.drafter is Drafter.MODEL:
        yield _GRAPHS
    elif served.drafter in _PARALLEL:
        yield _FALLS_BACK.format(what="parallel drafts")
    if isinstance(served.policy, SuffixDecoding):
        yield _SUFFIX


def _speculation(served: Served) -> dict[str, Any]:
    policy, tokens = served.policy, served.num_draft_tokens
    if isinstance(policy, PromptLookup):
        found: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": tokens}
        return found | {"prompt_lookup_max": policy.longest_match, "prompt_lookup_min": 1}
    if isinstance(policy, SuffixDecoding):
        return {
            "method": "suffix",
            "num_speculative_tokens": tokens,
            "suffix_decoding_max_tree_depth": policy.max_tree_depth,
            "suffix_decoding_max_spec_factor": policy.max_spec_factor,
            "suffix_decoding_min_token_prob": policy.min_token_prob,
            "suffix_decoding_max_cached_requests": 0,
        }
    if served.drafter is None:
        return {}
    found = {"method": _METHODS[served.drafter]}
    if served.draft is not None:
        found["model"] = served.draft
    found |= {"num_speculative_tokens": tokens, "draft_tensor_parallel_size": served.draft_degree}
    if served.drafter in _PARALLEL:
        found["parallel_drafting"] = True
    if served.quantisation.get(Role.DRAFT) == "fp8":
        found["quantization"] = "fp8"
    if served.schedule:
        found["num_speculative_tokens_per_batch_size"] = [list(each) for each in served.schedule]
    if served.rates is not None:
        found |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [round(rate, 4) for rate in served.rates],
        }
        if served.draft is not None:
            found["draft_load_config"] = {"load_format": "dummy"}
    return found
