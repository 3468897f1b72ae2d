"""SGLang's command line. Sources: sglang/srt/arg_groups/fields/spec.py and speculative_hook.py of the release."""

from swiftspec.export.served import Command, Served
from swiftspec.policies.eagle2 import Eagle2Tree
from swiftspec.policies.effects import Role
from swiftspec.policies.prompt_lookup import PromptLookup

__all__ = ["sglang_command"]

_MEAN_ONLY = (
    "Acceptance by position: SGLANG_SIMULATE_ACC_LEN is a mean, reached by rounds with the next lower and the next "
    "higher number of tokens."
)
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
    return Command(
        arguments=("python3", "-m", "sglang.launch_server", *options),
        environment=_imitation(served),
        configuration=speculation,
        not_expressed=() if served.rates is None else (_MEAN_ONLY,),
        remarks=(_PAGES,) if isinstance(served.policy, Eagle2Tree) else (),
    )


def _speculation(served: Served) -> dict[str, str]:
    policy = served.policy
    if isinstance(policy, PromptLookup):
        return {
            "--speculative-algorithm": "NGRAM",
            "--speculative-num-draft-tokens": str(policy.target_rows),
            "--speculative-ngram-max-bfs-breadth": "1",
            "--speculative-ngram-max-trie-depth": str(policy.longest_match + policy.num_draft_tokens),
        }
    if served.draft is None:
        return {}
    # Rows of a verification, not drafted tokens, are SGLang's "draft tokens"; one step of EAGLE-2 adds one level.
    levels, width = (policy.depth + 1, policy.top_k) if isinstance(policy, Eagle2Tree) else (policy.target_rows - 1, 1)
    found = {
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": served.draft,
        "--speculative-num-steps": str(levels),
        "--speculative-eagle-topk": str(width),
        "--speculative-num-draft-tokens": str(policy.target_rows),
    }
    target, draft = served.quantisation.get(Role.TARGET), served.quantisation.get(Role.DRAFT)
    if draft == "fp8" and target != "fp8":
        found["--speculative-draft-model-quantization"] = "fp8"
    elif target == "fp8" and draft is None:
        found["--speculative-draft-model-quantization"] = "unquant"  # it would inherit the target's
    if served.rates is not None:
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
