"""Checks before processes start for a plan, or a request is sent to them. Each rule once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.devices import DEVICES
from swiftspec.devices.local import num_devices_here
from swiftspec.errors import check_extra
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.policies.scoring import PromptScoring
from swiftspec.scheduler.admission import BLOCK_TOKENS, num_blocks
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas

_SHORTEST = 32  # tokens of a request that an engine at least has room for


def check_devices(
    plan: Plan, candidates: Iterable[Candidate] = (), *, source: str, replicas: Replicas = ONE_REPLICA
) -> None:
    """ValueError unless the engine is installed, on a machine of the plan's kind, with every device of the candidates.

    source: name of the plan in the error. replicas: of a candidate.
    """
    if plan.device in DEVICES:
        raise ValueError(f"{source}: a plan for {plan.device}, which this machine is not; `simulate` can replay it")
    check_extra("engine", needed_by="running a plan")
    available = num_devices_here(plan.device)
    for candidate in candidates:
        policy = candidate.build()
        replicas.check(policy)
        needed = 1 + max(device for devices in replicas.devices(candidate.groups).values() for device in devices)
        if needed > available:
            is_divided = policy.layout is Layout.DISAGGREGATED
            num_groups = policy.target_groups * replicas.num_targets + replicas.num_groups[Role.DRAFT]
            why = f" in {num_groups} disjoint groups" if is_divided else ""
            raise ValueError(
                f"{source}: {candidate.describe()} needs {needed} devices{why}; this machine offers {available}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """The most tokens that a prompt and its output may have together.

    num_positions: of the model, or slots of the engine's caches. what: that limit, for errors. tree_rows: positions of
    a verification.
    """

    num_positions: int
    what: str
    tree_rows: int = 0

    @classmethod
    def of_model(cls, spec: ModelSpec, policies: Iterable[Policy], *, model: str) -> Self:
        """A model's limit, less the largest tree of some policies."""
        return cls(
            num_positions=spec.max_position,
            what=f"the {spec.max_position} positions of {model}",
            tree_rows=max(policy.target_rows for policy in policies),
        )

    @property
    def most(self) -> int:
        """Tokens of the longest prompt with its output."""
        return self.num_positions - self.tree_rows

    def check(self, num_prompt_tokens: int, max_new_tokens: int, *, prompt: str = "prompt") -> None:
        """ValueError, naming the prompt, if it does not fit with its output."""
        if num_prompt_tokens + max_new_tokens > self.most:
            tree = f" and {self.tree_rows} tree rows" if self.tree_rows else ""
            raise ValueError(
                f"{prompt} has {num_prompt_tokens} tokens; with {max_new_tokens} output tokens{tree} "
                f"that is more than {self.what}"
            )


def check_layout(policy: Policy, layout: Layout, *, target_groups: int) -> None:
    """ValueError unless an engine of this layout can run a policy."""
    if isinstance(policy, PromptScoring):
        return  # every engine has a target
    runs = {layout, Layout.TARGET_ONLY} if layout is Layout.COLOCATED else {layout}
    if policy.layout not in runs:
        raise ValueError(f"policy {policy.name} is {policy.layout}, but the engine is {layout}")
    if policy.target_groups != target_groups:
        raise ValueError(
            f"policy {policy.name} needs {policy.target_groups} target groups; the engine has {target_groups}"
        )


def check_tree(policy: Policy, num_slots: int) -> None:
    """ValueError unless caches with this many tree slots have room for a policy's largest tree."""
    if (rows := max(policy.draft_rows, policy.target_rows)) > num_slots:
        raise ValueError(f"policy {policy.name} needs {rows} tree rows; the engine's caches hold {num_slots}")


def fitting_context(max_context: int, kv_blocks: int | None, *, tree_rows: int) -> int:
    """Tokens of the longest request that so many cache blocks hold. ValueError if they hold no short one."""
    if kv_blocks is None:
        return max_context
    held = kv_blocks * BLOCK_TOKENS - tree_rows
    if held < _SHORTEST:
        least = num_blocks(_SHORTEST + tree_rows)
        raise ValueError(f"kv_blocks is {kv_blocks}; expected {least} or more, for a request of {_SHORTEST} tokens")
    return min(max_context, held)
