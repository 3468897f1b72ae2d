"""The plan that an engine runs: the planned candidate if it can, else the nearest one, by its methods of drafting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swiftspec.artifacts.candidate import Candidate, described
from swiftspec.artifacts.plan import Plan
from swiftspec.engines import Engine
from swiftspec.engines.words import METHODS_BY_DRAFT, Method
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.published import known_model, model_names
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.sparse_spec import in_layout
from swiftspec.models.spec import ModelSpec, is_model_directory, model_directory
from swiftspec.policies import DraftKind, Layout, Policy
from swiftspec.policies.base import drafts_chain, drafts_elsewhere, shape_of
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.policies.trees.eagle2 import Eagle2Tree
from swiftspec.policies.trees.heads import HeadChain

_PARALLEL = "pard:"
# Parallel drafts of PARD's authors, by the model that each was made of. Source: README of AMD-AGI/PARD.
_PARD = {
    "llama-3.2-1b": "amd/PARD-Llama-3.2-1B",
    "qwen2.5-0.5b": "amd/PARD-Qwen2.5-0.5B",
    "qwen3-0.6b": "amd/PARD-Qwen3-0.6B",
}
_SUBSTITUTES = {
    Method.MODEL: SerialChain.name,
    Method.EAGLE: HeadChain.name,
    Method.EAGLE3: HeadChain.name,
    Method.MTP: HeadChain.name,
}


def method_of(policy: Policy, drafter: Method) -> Method | None:
    """How a policy drafts with a plan's drafter; None if it does not, or no engine has such a method."""
    if drafts_elsewhere(policy) and drafter is Method.MODEL:
        return Method.DRAFT_SERVER
    return _own_method(policy, drafter)


def _own_method(policy: Policy, drafter: Method) -> Method | None:
    """The same of an engine without a draft server."""
    if policy.layout is Layout.TARGET_ONLY:
        lookups: dict[type[Policy], Method] = {PromptLookup: Method.PROMPT_LOOKUP, SuffixDecoding: Method.SUFFIX}
        return next((method for kind, method in lookups.items() if isinstance(policy, kind)), None)
    # A parallel draft can also write one token after the other.
    is_serial = drafter is Method.PARD and DraftKind.SERIAL in policy.drafts
    return Method.MODEL if is_serial else drafter


def drafter_of(model: str) -> Method:
    """The drafter that a plan's draft is: a head by its name, `pard:NAME`, or what a directory's config.json says."""
    if model in METHODS_BY_DRAFT:
        return METHODS_BY_DRAFT[model]
    if model.startswith(_PARALLEL):
        return Method.PARD
    if model in model_names() or not is_model_directory(model):
        return Method.MODEL
    drafter = draft_facts(model, runs=False).drafter
    return METHODS_BY_DRAFT[drafter] if drafter else Method.MODEL


def model_argument(name: str, engine: Engine) -> str:
    """A model as engines name it: a repository of the hub, or a directory, or the one file in it that the engine reads.

    ValueError if there are several such files.
    """
    if name in model_names():
        return known_model(name).source
    if not is_model_directory(name):
        return name
    directory = model_directory(name)
    reads = engine.command.reads if engine.command else ""
    files = sorted(directory.glob(f"*{reads}")) if reads else []
    if len(files) > 1:
        raise ValueError(f"{directory} has {len(files)} files of {reads}; expected one")
    return str(files[0] if files else directory)


def checkpoint(model: str, engine: Engine) -> tuple[str | None, str]:
    """A draft as engines name it, None where it comes with its target; and a sentence if the plan names none."""
    drafter = drafter_of(model)
    if drafter is Method.MODEL or (is_model_directory(model) and model not in model_names()):
        return model_argument(model, engine), ""
    if drafter is Method.MTP:
        return None, "The MTP layers are those of the target's checkpoint; a target without them has no such draft."
    if drafter is Method.PARD and (known := _PARD.get(model.removeprefix(_PARALLEL))):
        return known, ""
    stand_in = model.upper().replace(":", "-") + "-CHECKPOINT"
    return stand_in, f"The plan names no checkpoint of its draft: --draft puts one in place of {stand_in}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """A policy that an engine has, and the devices that divide the models.

    num_devices: of the server. degree, draft_degree: parts of each model, on a CPU of several cores. tokens_per_s:
    predicted, None if the plan does not know. basis: its origin, a sentence; empty for the planned candidate.
    """

    policy: Policy
    num_devices: int
    degree: int
    draft_degree: int
    tokens_per_s: float | None
    basis: str

    def describe(self) -> str:
        """`serial_chain 8 (num_draft_tokens=4)`."""
        return described(self.policy.name, str(self.num_devices), shape_of(self.policy))


def has_policy(engine: Engine, policy: Policy, drafter: Method) -> bool:
    """Whether an engine can run a policy as it is. drafter: of the plan; policies without a draft do not use it."""
    if policy.plain:
        return True
    alone = policy.layout is Layout.TARGET_ONLY and not policy.verifies_trees
    is_known_tree = engine.eagle2_trees and isinstance(policy, Eagle2Tree) and not policy.fuzzy
    is_known = alone or is_known_tree or drafts_chain(policy) or drafts_elsewhere(policy)
    return is_known and method_of(policy, drafter) in engine.methods


def nearest(plan: Plan, planned: Candidate, engine: Engine, *, no_trees: bool = False) -> Runnable:
    """The planned candidate if the engine can run it, otherwise what comes closest.

    no_trees: not even those that the engine has.

    ValueError: if the engine has nothing like it; the sentence names what to plan again.
    """
    policy, basis = planned.build(), ""
    drafter = drafter_of(plan.draft.model)
    speed: float | None = planned.tokens_per_s
    devices, ranks = len(planned.devices), planned.ranks.get(Role.TARGET, 1)

    def runs(one: Policy) -> bool:
        return has_policy(engine, one, drafter) and not (no_trees and one.num_candidates > 1)

    # In place of what an engine does not have comes nothing that only an experiment of it has.
    known = (each for each in plan.candidates.values() if not drafts_elsewhere(each.build()))
    runnable = [each for each in known if runs(each.build())]
    if runs(policy):
        if drafts_elsewhere(policy):
            devices = len(planned.groups[Role.TARGET])
    elif isinstance(policy, SuffixDecoding) and runs(chain := replace(policy, branches=1)):
        policy, speed = chain, None
        basis = "Another plan, made here and not predicted: one continuation of the text instead of several."
    elif (other := _like(policy, runnable)) is not None:
        policy, speed = other.build(), other.tokens_per_s
        devices, ranks = len(other.devices), other.ranks.get(Role.TARGET, 1)
        both = "" if policy.layout is Layout.TARGET_ONLY else ", both models on the same devices"
        basis = f"Another plan: the best {other.policy} that the plan has{both}."
    elif policy.chain_tokens and _own_method(policy, drafter) is Method.MODEL:
        policy, speed = SerialChain(num_draft_tokens=policy.chain_tokens), None
        basis = (
            "Another plan, made here and not predicted: a chain as long, drafted in turn on all devices of the plan."
        )
    else:
        raise _nothing_like(planned, policy, engine, drafter)
    parts = ranks if plan.device == "cpu" else devices
    found = Runnable(
        policy=policy, num_devices=devices, degree=parts, draft_degree=parts, tokens_per_s=speed, basis=basis
    )
    return _divided(plan, found, engine)


def _nothing_like(planned: Candidate, policy: Policy, engine: Engine, drafter: Method) -> FieldError:
    drafts = policy.layout is not Layout.TARGET_ONLY
    method = _own_method(policy, drafter)
    if drafts and method not in engine.methods:
        value = f"{planned.policy!r} with {drafter}, which {engine.described()} does not have"
        return FieldError("policy", value, "expected a plan with another draft")
    substitute = _SUBSTITUTES.get(method or drafter, ParallelChain.name) if drafts else PromptLookup.name
    value = f"{planned.policy!r}, which {engine.full_name} does not have, and the plan has no {substitute} in its place"
    return FieldError("policy", value, f"expected a plan of all policies, or of {substitute}")


def _like(policy: Policy, candidates: Sequence[Candidate]) -> Candidate | None:
    """The first that drafts, with a model if the policy does."""
    alone = policy.layout is Layout.TARGET_ONLY
    for candidate in candidates:
        other = candidate.build()
        if other.target_rows > 1 and (other.layout is Layout.TARGET_ONLY) == alone:
            return candidate
    return None


def _divided(plan: Plan, placed: Runnable, engine: Engine) -> Runnable:
    """Divided as planned, or into the most parts that divide the heads; of both models if the draft follows."""
    target = _spec(plan.target.model, plan.layout)
    draft = _spec(plan.draft.model, plan.layout) if placed.policy.layout is Layout.COLOCATED else None

    def divides(spec: ModelSpec | None, parts: int) -> bool:
        return spec is None or engine.divides(spec, parts)

    degree = next(
        parts
        for parts in range(placed.degree, 0, -1)
        if divides(target, parts) and (engine.leaves_draft_whole or divides(draft, parts))
    )
    draft_degree = degree // (target.attention_ranks if target else 1) if divides(draft, degree) else 1
    if degree == placed.degree:
        return replace(placed, draft_degree=draft_degree)
    basis = (
        f"Another plan, not predicted: {degree} devices instead of {placed.degree}, since {engine.full_name} divides a "
        "model only by a number that divides its heads."
    )
    return replace(placed, num_devices=degree, degree=degree, draft_degree=draft_degree, tokens_per_s=None, basis=basis)


def _spec(name: str, layout: str) -> ModelSpec | None:
    name = name.removeprefix("pard:")
    if name in model_names():
        found = known_model(name).spec
    elif is_model_directory(name):
        found = read_spec(model_directory(name))
    else:
        return None
    return in_layout(found, DeviceLayout.parse(layout) if layout else None)
