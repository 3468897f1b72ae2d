"""What an engine cannot express of a plan, in sentences."""

from collections.abc import Iterator

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.export.nearest import Runnable, has_policy
from swiftspec.export.result import Engine
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role

__all__ = ["not_expressed", "remarks"]

_OTHER_WEIGHTS = ("int8", "int4")


def not_expressed(plan: Plan, planned: Candidate, engine: Engine) -> Iterator[str]:
    """Sentences about a planned candidate, the most important first."""
    policy, name = planned.build(), engine.title
    if policy.layout is Layout.DISAGGREGATED:
        yield (
            f"A draft on devices of its own ({planned.split}): {name} runs draft and target in turn on the same devices."
        )
        yield f"Drafting while the target verifies ({planned.policy}): {name} drafts between verifications only."
        yield from _degrees(planned, engine)
        yield f"Decoding alone when the draft is late (patience of {planned.patience_s:g} s): {name} waits for its draft."
    if not has_policy(engine, policy):
        yield from _shape(policy, name)
    control = _control(plan, planned)
    if control is not None:
        yield f"The control {control}, which changes how much is drafted and verified under load: {name} has no such one."
    for role, model in ((Role.TARGET, plan.target), (Role.DRAFT, plan.draft)):
        if model.inflate is not None:
            yield f"The {role}'s inflation ({model.inflate}): {name} runs {model.model} as it is."
        if plan.quantisation.get(role, model.dtype) in _OTHER_WEIGHTS:
            quantised = plan.quantisation.get(role, model.dtype)
            yield f"The {role}'s weights in {quantised}: {name} reads them from a checkpoint; name such a one instead."


def remarks(plan: Plan, planned: Candidate, found: Runnable, engine: Engine) -> Iterator[str]:
    """Sentences about the exported plan."""
    basis = f"forwards of {plan.engine}" if plan.engine else "forwards of swiftspec's engine"
    yield f"Speeds are predicted for {basis} on {plan.device}, not measured on {engine.title}."
    plain = plan.candidates.get("autoregressive")
    speed = plain.prediction.metrics.figures.tokens_per_s if plain is not None else 0.0
    if found.tokens_per_s is not None and speed > found.tokens_per_s and found.policy.target_rows > 1:
        yield f"Without a draft {speed:.1f} tokens/s are predicted, which is more: --policy autoregressive exports that."
    if plan.fleet is not None and plan.fleet.num_replicas > 1:
        yield f"The command starts one of {plan.fleet.num_replicas} replicas."


def _degrees(planned: Candidate, engine: Engine) -> Iterator[str]:
    target, draft = (len(planned.groups[role]) for role in (Role.TARGET, Role.DRAFT))
    if engine is Engine.VLLM and draft not in (1, target):
        yield f"A draft divided by {draft} devices: vLLM divides it by 1 or by as many as the target."
    elif engine is not Engine.VLLM and draft != target:
        yield f"A draft divided by {draft} devices: {engine.title} divides it by as many as the target."


def _shape(policy: Policy, name: str) -> Iterator[str]:
    if policy.num_candidates > 1:
        others = (
            "; its only trees are EAGLE-2's" if name == Engine.SGLANG.title else " of one candidate after each token"
        )
        yield f"A tree of {policy.target_rows} rows ({policy.name}): {name} verifies chains{others}."
    if policy.fuzzy:
        yield f"Draft forwards with several layers at once ({policy.name}): {name} has none."
    if policy.exits:
        yield f"Drafting from the middle of the target ({policy.name}): {name} has no early exit."
    if policy.target_groups > 1:
        yield f"{policy.target_groups} copies of the target for one request: {name} gives a request to one."
    if policy.layout is Layout.TARGET_ONLY:
        yield f"Drafts by {policy.name}: {name} has no such method."


def _control(plan: Plan, planned: Candidate) -> str | None:
    found = planned.control
    if found is None and plan.under_load is not None:
        found = plan.under_load.options.control
    return None if found in (None, "none") else found
