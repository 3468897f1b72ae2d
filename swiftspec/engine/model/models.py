"""The models of one process: a target, a draft, or both, of which the draft may be a head on the target's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swiftspec.artifacts.document import ModelRef
from swiftspec.engine.model.features import FeatureTaps
from swiftspec.engine.model.head_layers import HeadLayers
from swiftspec.engine.model.head_runner import HeadRunner
from swiftspec.engine.model.head_weights import load_head_weights
from swiftspec.engine.model.runner import DTYPES, ModelRunner
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.head_spec import HeadSpec, inflated_layers, is_head
from swiftspec.models.spec import Inflation, ModelSpec, model_directory
from swiftspec.policies.effects import Role

__all__ = ["Models", "head_of", "load_models"]

Models = Mapping[Role, ModelRunner | HeadRunner]


def load_models(
    references: Mapping[Role, ModelRef],
    *,
    max_context: int,
    tree_slots: int,
    num_sequences: int = 1,
    tenants: Sequence[str] = (),
    device: str = "cpu",
    tp_group: TPGroup | None = None,
) -> Models:
    """Load the models of a process, with room as `ModelRunner.load` says.

    ValueError, in one sentence, if one cannot be used, or a head not with this target.
    """
    spec = head_of(references, device=device)
    whole = {
        role: ModelRunner.load(
            reference,
            max_context=max_context,
            tree_slots=tree_slots,
            num_sequences=num_sequences,
            tenants=tenants if role is Role.TARGET else (),
            device=device,
            tp_group=tp_group,
            taps=_taps(spec, reference) if spec else None,
        )
        for role, reference in references.items()
        if spec is None or role is Role.TARGET
    }
    if spec is None:
        return whole
    draft, directory = references[Role.DRAFT], model_directory(references[Role.TARGET].model)
    dtype = DTYPES["float32" if draft.dtype == "int8" else draft.dtype]
    weights = load_head_weights(spec, ModelSpec.from_directory(directory), directory)
    layers = HeadLayers(spec, weights, dtype=dtype)
    head = HeadRunner(layers, whole[Role.TARGET].caches, capacity=max_context + tree_slots, dtype=dtype)
    return {**whole, Role.DRAFT: head}


def head_of(references: Mapping[Role, ModelRef], *, device: str = "cpu") -> HeadSpec | None:
    """The draft's shape if it is a head. ValueError unless its target is in the same process, on a CPU."""
    draft = references.get(Role.DRAFT)
    if draft is None or not is_head(model_directory(draft.model)):
        return None
    if Role.TARGET not in references:
        raise ValueError(f"draft {draft.model} reads the target's hidden states; expected a co-located policy")
    if device != "cpu":
        raise ValueError(f"draft {draft.model} reads the target's hidden states, on CPUs only; the device is {device}")
    if draft.inflate:
        raise ValueError(f"draft {draft.model} is a head; it cannot be inflated to {draft.inflate}")
    return HeadSpec.from_directory(model_directory(draft.model))


def _taps(head: HeadSpec, target: ModelRef) -> FeatureTaps:
    spec = ModelSpec.from_directory(model_directory(target.model))
    inflation = Inflation.parse(target.inflate) if target.inflate else None
    return FeatureTaps(inflated_layers(head.layers_of(spec), spec, inflation), spec.hidden_size)
