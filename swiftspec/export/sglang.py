"""SGLang's command line. Sources: sglang/srt/arg_groups/fields/spec.py and speculative_hook.py of the release."""

import json
from collections.abc import Sequence

from swiftspec.export.drafters import Drafter
from swiftspec.export.result import LengthRange
from swiftspec.export.served import Command, Served
from swiftspec.policies.eagle2 import Eagle2Tree
from swiftspec.policies.effects import Role
from swiftspec.policies.prompt_lookup import PromptLookup

__all__ = ["sglang_command"]

_MEAN_ONLY = (
    "Acceptance by position: SGLANG_SIMULATE_ACC_LEN is a mean, reached by rounds with the next lower and the next "
    "higher number of tokens."
)
_ADAPTIVE_FILE = "adaptive.json"
_ADAPTIVE = (
    "SGLang looks draft tokens up by batch size in adaptive.json; each size has one number of steps there, so that "
    "acceptance changes nothing."
)
_ALGORITHMS = {
    Drafter.MODEL: "STANDALONE",
    Drafter.EAGLE3: "EAGLE3",
    Drafter.MTP: "NEXTN",
    Drafter.DFLASH: "DFLASH",
    Drafter.DSPARK: "DSPARK",
}
_BLOCKS = (Drafter.DFLASH, Drafter.DSPARK)
_PAGES = "--speculative-eagle-topk above 1 needs --page-size 1, or one of the backends flashinfer, fa3 and triton."


def sglang_command(served: Served) -> Command:
    """Options of `sglang.launch_server`."""
    options = ["--model-path", served.target, "--tp-size", str(served.degree)]
    if served.dtype is not None:
        options += ["--dtype", served.dtype]
    if served.quantisation.get(Role.TARGET) == "fp8":
        options += ["--quantization", "fp8"]
    if served.max_running is not None:
        options += ["--max-running-requests", str(served.max_running)]
    speculation = _speculation(served)
    for name, value in speculation.items():
        options += [name, value]
    files = {}
    if served.schedule:
        options += ["--speculative-adaptive", "--speculative-adaptive-config", _ADAPTIVE_FILE]
        files[_ADAPTIVE_FILE] = _ladder(served.schedule)
    notes = ((_PAGES,) if isinstance(served.policy, Eagle2Tree) else ()) + ((_ADAPTIVE,) if served.schedule else ())
    return Command(
        arguments=("python3", "-m", "sglang.launch_server", *options),
        environment=_imitation(served),
        files=files,
        configuration=speculation,
        schedule=served.schedule,
        not_expressed=() if served.rates is None else (_MEAN_ONLY,),
        remarks=notes,
    )


def _ladder(schedule: Sequence[LengthRange]) -> str:
    """Steps by the least batch size that they are for."""
    steps = {str(each.first): {"candidate_steps": [each.num_draft_tokens]} for each in schedule}
    return json.dumps(steps, indent=1) + "\n"


def _speculation(served: Served) -> dict[str, str]:
    policy = served.policy
    if isinstance(policy, PromptLookup):
        return {
            "--speculative-algorithm": "NGRAM",
            "--speculative-num-draft-tokens": str(policy.target_rows),
            "--speculative-ngram-max-bfs-breadth": "1",
            "--speculative-ngram-max-trie-depth": str(policy.longest_match + policy.num_draft_tokens),
        }
    if served.drafter is None:
        return {}
    # Rows of a verification, not drafted tokens, are SGLang's "draft tokens"; one step of EAGLE-2 adds one level.
    levels, width = (policy.depth + 1, policy.top_k) if isinstance(policy, Eagle2Tree) else (policy.target_rows - 1, 1)
    found = {"--speculative-algorithm": _ALGORITHMS[served.drafter]}
    if served.draft is not None:
        found["--speculative-draft-model-path"] = served.draft
    if served.drafter not in _BLOCKS:  # which have one step
        found |= {"--speculative-num-steps": str(levels), "--speculative-eagle-topk": str(width)}
    found["--speculative-num-draft-tokens"] = str(policy.target_rows)
    target, draft = served.quantisation.get(Role.TARGET), served.quantisation.get(Role.DRAFT)
    if draft == "fp8" and target != "fp8":
        found["--speculative-draft-model-quantization"] = "fp8"
    elif target == "fp8" and draft is None:
        found["--speculative-draft-model-quantization"] = "unquant"  # it would inherit the target's
    if served.rates is not None and served.draft is not None:
        found["--speculative-draft-load-format"] = "dummy"
    return found


def _imitation(served: Served) -> dict[str, str]:
    if served.acceptance_length is None:
        return {}
    return {
        "SGLANG_SIMULATE_ACC_LEN": f"{served.acceptance_length:.4f}",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }
