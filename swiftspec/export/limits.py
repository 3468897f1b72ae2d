"""Parts of a plan that an engine cannot express, in sentences."""

from collections.abc import Iterator

from swiftspec.artifacts.gain import Verdict
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.engines import Engine
from swiftspec.engines.words import Method
from swiftspec.export.nearest import Runnable, drafter_of, has_policy, method_of
from swiftspec.policies import Layout, Policy
from swiftspec.policies.base import drafts_chain
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding

_OTHER_WEIGHTS = ("int8", "int4", "mxfp4", "nvfp4")


def not_expressed(plan: Plan, planned: Candidate, engine: Engine) -> Iterator[str]:
    """Sentences about a planned candidate, the most important first."""
    policy, name = planned.build(), engine.full_name
    drafter = drafter_of(plan.draft.model)
    is_known = has_policy(engine, policy, drafter)
    if policy.layout is Layout.DISAGGREGATED and not is_known:
        yield (f"A draft on devices of its own ({planned.split}): {name} runs both models in turn on the same devices.")
        yield f"Drafting while the target verifies ({planned.policy}): {name} drafts between verifications only."
        yield from _degrees(planned, engine)
        yield f"Decoding alone when the draft is late (after {planned.patience_s:g} s): {name} waits for its draft."
    if not is_known:
        yield from _shape(policy, engine, drafter)
    control = planned.control
    if control is None and plan.under_load is not None:
        control = plan.under_load.options.control
    if control not in (None, "none"):
        yield f"The control {control}, which changes how much is verified under load: {name} has no such one."
    for role, model in ((Role.TARGET, plan.target), (Role.DRAFT, plan.draft)):
        if model.inflate is not None:
            yield f"The {role}'s inflation ({model.inflate}): {name} runs {model.model} as it is."
        if plan.quantisation.get(role, model.dtype) in _OTHER_WEIGHTS:
            quantised = plan.quantisation.get(role, model.dtype)
            yield f"The {role}'s weights in {quantised}: {name} reads them from a checkpoint; name such a one instead."


def remarks(plan: Plan, found: Runnable, engine: Engine) -> Iterator[str]:
    basis = "forwards composed of measured kernels" if plan.engine else "swiftspec's own engine"
    yield f"Speeds are predicted for {basis} on {plan.device}; none was measured on {engine.full_name}."
    plain = plan.candidates.get("autoregressive")
    speed = plain.tokens_per_s if plain is not None else 0.0
    if found.tokens_per_s is not None and speed > found.tokens_per_s and found.policy.target_rows > 1:
        yield f"Without a draft {speed:.1f} tokens/s are predicted, which is more; --policy autoregressive exports it."
    if plan.gain is not None and plan.gain.verdict is Verdict.OPEN:
        interval = f"{plan.gain.low:.2f} to {plan.gain.high:.2f} times plain decoding"
        yield f"Whether drafting gains is open ({interval}): {plan.gain.closed_by}."
    if plan.fleet is not None and plan.fleet.num_replicas > 1:
        yield (
            f"The command starts one of {plan.fleet.num_replicas} equal servers: run it once for each, on devices "
            "and a port of its own, behind a proxy that gives requests out in turn."
        )
    if plan.longest_request:
        longest = plan.longest_request
        yield f"Requests of up to {longest} tokens, output included, were planned for: longer ones are refused."


def _degrees(planned: Candidate, engine: Engine) -> Iterator[str]:
    target, draft = (len(planned.groups[role]) for role in (Role.TARGET, Role.DRAFT))
    allowed = (1, target) if engine.leaves_draft_whole else (target,)
    if draft not in allowed:
        parts = "A draft that is not divided" if draft == 1 else f"A draft divided into {draft} parts"
        rule = "into as many parts as the target, or not at all" if 1 in allowed else "into as many parts as the target"
        yield f"{parts}: {engine.full_name} divides it {rule}."


def _shape(policy: Policy, engine: Engine, drafter: Method) -> Iterator[str]:
    name = engine.full_name
    if drafts_chain(policy):
        yield f"Drafts by {drafter}: {name} has no such method."
    if policy.num_candidates > 1:
        trees = "chains and EAGLE-2's trees" if engine.eagle2_trees else "chains"
        yield f"A tree of {policy.target_rows} rows ({policy.name}): {name} verifies {trees} only."
    if policy.fuzzy:
        yield f"Draft forwards with several layers at once ({policy.name}): {name} has none."
    if policy.exits:
        yield f"Drafting from the middle of the target ({policy.name}): {name} has no early exit."
    if policy.target_groups > 1:
        yield f"{policy.target_groups} copies of the target for one request: {name} gives a request to one."
    if isinstance(policy, SuffixDecoding) and method_of(policy, drafter) in engine.methods:
        yield f"{policy.branches} continuations of a token ({policy.name}): {name} follows one."
    elif policy.layout is Layout.TARGET_ONLY:
        yield f"Drafts by {policy.name}: {name} has no such method."
