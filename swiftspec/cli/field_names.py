"""Translation of field names in the library's errors to command-line flags."""

import re

__all__ = ["in_flags"]

_OWN = {  # all others have the flag's name
    "backend": "--jobs",
    "clients": "--load",
    "context": "--prompt-tokens",
    "draft_kv_budget": "--set draft_kv_budget",
    "duration_s": "--set duration_s",
    "earlier_outputs": "--set earlier_outputs",
    "distinct_prompts": "--set distinct_prompts",
    "rate": "--set rate",
    "start_s": "--set start_s",
    "transfer_ms": "--set transfer_ms",
    "draft_quant": "--dtype",
    "expert_correlation": "--set expert_correlation",
    "expert_parallel": "--set expert_parallel",
    "format_name": "--from",
    "host_s": "--set host_ms",
    "most_requests": "--set load_requests",
    "num_devices": "--devices",
    "num_jobs": "--jobs",
    "num_requests": "--requests",
    "num_samples": "--samples",
    "percentile": "--limit p",
    "quant": "--dtype",
    "workload": "--load",
}
_SNAKE = (
    "acceptance_method",
    "accept_noise",
    "distinct_prompts",
    "draft_kv_budget",
    "draft_quant",
    "duration_s",
    "earlier_outputs",
    "end_marker",
    "expert_correlation",
    "expert_parallel",
    "format_name",
    "host_s",
    "max_new_tokens",
    "max_sequences",
    "most_requests",
    "num_devices",
    "num_jobs",
    "num_requests",
    "num_samples",
    "op_tables",
    "output_tokens",
    "system_prompt_tokens",
    "system_prompts",
    "think_time_s",
)
_WORDS = (
    "acceptance",
    "arrivals",
    "backend",
    "context",
    "dataset",
    "degrees",
    "device",
    "draft",
    "dtype",
    "engine",
    "fleet",
    "lengths",
    "objective",
    "percentile",
    "transfer_ms",
    "policy",
    "prompt_tokens",
    "quant",
    "ranks",
    "rate",
    "ray",
    "role",
    "split",
    "start_s",
    "synthetic",
    "target",
    "turns",
    "workload",
)
# Fields of a file are not flags: `plan.json: num_devices is ..`, `requests[3].output_tokens is ..`.
_ANYWHERE = re.compile(rf"(?<!: )(?<!\.)\b(?:{'|'.join(_SNAKE)})\b(?!\.)")
# Everyday words are fields only at the beginning of a sentence.
_FIRST = re.compile(rf"^(?:{'|'.join(_WORDS)})(?= is (?!placed))")
_SEVERAL = re.compile(r"^(?:policies|clients)(?= has )")
_SETTING = re.compile(r"^set(?= \w+ (?:is|needs) )")
_SECOND = re.compile(r"(?<=with )(?:dataset|trace)(?= )")


def in_flags(sentence: str) -> str:
    """Replace field names in a sentence: `num_devices is 99; expected ..` begins with `--devices`."""
    for pattern in (_ANYWHERE, _FIRST, _SEVERAL, _SETTING, _SECOND):
        sentence = pattern.sub(_flag, sentence)
    return sentence


def _flag(match: re.Match[str]) -> str:
    return _OWN.get(match[0], f"--{match[0].replace('_', '-')}")
