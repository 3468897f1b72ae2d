"""Methods of drafting as engines tell them apart, and the checkpoints that they load."""

from swiftspec.engines.words import METHODS_BY_DRAFT, Method
from swiftspec.files.reading import read_foreign_json
from swiftspec.models import known_model, model_names
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.head_spec import HeadFormat, head_format
from swiftspec.models.spec import is_model_directory, model_directory
from swiftspec.policies import DraftKind, Layout, Policy
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding

__all__ = ["checkpoint", "drafter_of", "method_of", "model_argument"]

_PARALLEL = "pard:"
# Parallel drafts of PARD's authors, by the model that each was made of. Source: README of AMD-AGI/PARD.
_PARD = {
    "llama-3.2-1b": "amd/PARD-Llama-3.2-1B",
    "qwen2.5-0.5b": "amd/PARD-Qwen2.5-0.5B",
    "qwen3-0.6b": "amd/PARD-Qwen3-0.6B",
}


def method_of(policy: Policy, drafter: Method) -> Method | None:
    """How a policy drafts with a plan's drafter; None if it does not, or no engine has such a method."""
    if policy.layout is Layout.TARGET_ONLY:
        lookups = {PromptLookup: Method.PROMPT_LOOKUP, SuffixDecoding: Method.SUFFIX}
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
    kind = draft_facts(model).kind
    if kind is DraftKind.HEAD:
        values = read_foreign_json(model_directory(model) / "config.json")
        return Method.EAGLE3 if head_format(values) is HeadFormat.EAGLE3 else Method.MTP
    return {DraftKind.PARALLEL: Method.PARD, DraftKind.BLOCK: Method.DFLASH}.get(kind, Method.MODEL)


def model_argument(name: str) -> str:
    """A model as engines name it: a repository of the hub, or a directory."""
    if name in model_names():
        return known_model(name).source
    return str(model_directory(name)) if is_model_directory(name) else name


def checkpoint(model: str) -> tuple[str | None, str]:
    """A draft as engines name it, None where it comes with its target; and a sentence if the plan names none."""
    drafter = drafter_of(model)
    if is_model_directory(model) and model not in model_names():
        return str(model_directory(model)), ""
    if drafter is Method.MODEL:
        return model_argument(model), ""
    if drafter is Method.MTP:
        return None, "The MTP layers are those of the target's checkpoint; a target without them has no such draft."
    if drafter is Method.PARD and (known := _PARD.get(model.removeprefix(_PARALLEL))):
        return known, ""
    stand_in = model.upper().replace(":", "-") + "-CHECKPOINT"
    return stand_in, f"The plan names no checkpoint of its draft: --draft puts one in place of {stand_in}."
