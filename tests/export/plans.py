"""Plans to export: candidates by their policies, and draft tokens by batch size."""

from collections.abc import Sequence
from typing import Any

from swiftspec.artifacts.fleet import DraftLength
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import Role
from tests.cli import samples
from tools.iid_trace import synthesise_trace

TARGET = ModelRef(model="llama-3-70b", dtype="bf16")
DRAFT = ModelRef(model="llama-3.2-1b", dtype="bf16")
SHAPES: dict[str, dict[str, Any]] = {
    "swiftspec": {"verify_rows": 8, "expand_rows": 4},
    "eagle2_tree": {"verify_rows": 12, "top_k": 4, "depth": 3},
    "serial_chain": {"num_draft_tokens": 4},
    "pearl": {"num_draft_tokens": 3},
    "prompt_lookup": {"num_draft_tokens": 5, "longest_match": 3},
    "autoregressive": {},
    "head_chain": {"num_draft_tokens": 3},
    "head_tree": {"verify_rows": 12, "top_k": 4, "depth": 3},
    "parallel_chain": {"num_draft_tokens": 7},
    "parallel_tree": {"verify_rows": 16},
    "swiftspec_parallel": {"verify_rows": 16},
    "suffix_decoding": {"verify_rows": 9, "max_spec_factor": 2.0},
}
DRAFTED = ("serial_chain", "eagle2_tree", "swiftspec", "head_chain", "head_tree", "parallel_chain")
SPEEDS = dict(
    zip(SHAPES, (290.0, 230.0, 190.0, 180.0, 90.0, 80.0, 210.0, 240.0, 300.0, 320.0, 330.0, 120.0), strict=True)
)
TRACE = synthesise_trace([0.7, 0.2], prompt_lengths=[8] * 20, num_tokens=400, seed=1)


def candidate(policy: str, *, target: int = 8, draft: int = 0) -> Candidate:
    groups = {Role.TARGET: tuple(range(target))}
    if draft:
        groups[Role.DRAFT] = tuple(range(target, target + draft))
    made = samples.candidate("autoregressive", tokens_per_s=SPEEDS[policy])
    return Candidate.model_validate(made.model_dump() | {"policy": policy, "groups": groups, "shape": SHAPES[policy]})


def plan(*candidates: Candidate, **changes: Any) -> Plan:
    chosen, *others = candidates
    made = samples.plan(target=TARGET, draft=DRAFT).model_dump()
    stated = {"device": "h100-sxm", "num_devices": 8, "chosen": chosen, "alternatives": others}
    return Plan.model_validate(made | stated | changes)


CHAIN = plan(candidate("serial_chain"), candidate("prompt_lookup"), candidate("autoregressive"))
ASYNC = plan(candidate("swiftspec", target=5, draft=3), candidate("serial_chain"), candidate("autoregressive"))


def lengths(*found: tuple[int, int]) -> list[DraftLength]:
    return [
        DraftLength(batch=batch, num_draft_tokens=tokens, tokens_per_s=100.0, plain_tokens_per_s=90.0)
        for batch, tokens in found
    ]


def falling(num_devices: int, ranks: int, max_running: int) -> Sequence[DraftLength]:
    return lengths((1, 4), (2, 4), (8, 2), (32, 0))


def drafted(model: str, *candidates: Candidate, **changes: Any) -> Plan:
    """A plan with another draft: a head by its name, a parallel draft."""
    return plan(*candidates, draft=ModelRef(model=model, dtype="bf16"), **changes)
