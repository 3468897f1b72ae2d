"""TensorRT-LLM's command line: `trtllm-serve --config`. Source: tensorrt_llm/llmapi/llm_args.py and its guide."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swiftspec.export.drafters import Drafter
from swiftspec.export.result import LengthRange
from swiftspec.export.served import Command, Served
from swiftspec.policies.effects import Role
from swiftspec.policies.prompt_lookup import PromptLookup

__all__ = ["trtllm_command"]

_FILE = "trtllm.yaml"
_TYPES = {
    Drafter.MODEL: "Draft_Target",
    Drafter.PARD: "PARD",
    Drafter.EAGLE3: "Eagle3",
    Drafter.MTP: "MTP",
    Drafter.DFLASH: "DFlash",
    Drafter.DSPARK: "DSpark",
}
_KEYS = (
    "Keys of draft_len_schedule are the last batch size of each length, and above the largest nothing is drafted; "
    "releases from before March 2026 read them as the first one and want a key 1."
)
_MEAN_ONLY = "Acceptance by position: TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS is a mean, without the bonus token."
_FP8 = "Weights in fp8: TensorRT-LLM reads them from the checkpoint; name one in fp8 in place of {model}."


def trtllm_command(served: Served) -> Command:
    """Options of `trtllm-serve`, with the speculation in a YAML file."""
    speculation = _speculation(served)
    if served.schedule:
        speculation["draft_len_schedule"] = _upper_bounds(served.schedule)
    configuration: dict[str, Any] = {} if served.dtype is None else {"dtype": served.dtype}
    if served.drafter is Drafter.MODEL or isinstance(served.policy, PromptLookup):
        configuration["disable_overlap_scheduler"] = True  # as the guide has it for these two
    if speculation:
        configuration["speculative_config"] = speculation
    options = ["--tp_size", str(served.degree)]
    if served.max_running is not None:
        options += ["--max_batch_size", str(served.max_running)]
    if configuration:
        options += ["--config", _FILE]
    not_expressed: list[str] = []
    environment = {}
    if served.acceptance_length is not None:
        not_expressed.append(_MEAN_ONLY)
        environment["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] = f"{served.acceptance_length - 1:.4f}"
    for role, model in ((Role.TARGET, served.target), (Role.DRAFT, served.draft)):
        if model is not None and served.quantisation.get(role) == "fp8":
            not_expressed.append(_FP8.format(model=model))
    return Command(
        arguments=("trtllm-serve", served.target, *options),
        environment=environment,
        files={_FILE: _yaml(configuration)} if configuration else {},
        configuration=speculation,
        schedule=served.schedule,
        not_expressed=tuple(not_expressed),
        remarks=(_KEYS,) if served.schedule else (),
    )


def _speculation(served: Served) -> dict[str, Any]:
    policy = served.policy
    if isinstance(policy, PromptLookup):
        # A request's own text only, and of several earlier occurrences the latest, as the policy has it.
        pool = {"is_public_pool": False, "is_keep_all": True, "is_use_oldest": False}
        size = {"max_draft_len": policy.num_draft_tokens, "max_matching_ngram_size": policy.longest_match}
        return {"decoding_type": "NGram", **size, **pool}
    if served.drafter is None:
        return {}
    found: dict[str, Any] = {"decoding_type": _TYPES[served.drafter], "max_draft_len": served.num_draft_tokens}
    if served.draft is not None:
        found["speculative_model"] = served.draft
    return found | {"load_format": "dummy"} if served.rates is not None and served.draft is not None else found


def _upper_bounds(schedule: Sequence[LengthRange]) -> dict[int, int]:
    return {each.last: each.num_draft_tokens for each in schedule if each.num_draft_tokens}


def _yaml(values: Mapping[Any, Any], indent: str = "") -> str:
    """Nested mappings of plain values as YAML, of which JSON's scalars are a part."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)
