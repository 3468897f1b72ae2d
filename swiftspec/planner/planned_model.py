"""A model of a pair with what planning needs of it, by its name or from its directory."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.pair import model_name
from swiftspec.engines.words import METHODS_BY_DRAFT, Method
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.draft_kinds import DrafterShape, DraftFacts, check_pair, draft_facts
from swiftspec.models.head_spec import drafter_layers
from swiftspec.models.heads import HEADS, Drafter, Product
from swiftspec.models.names import unknown
from swiftspec.models.published import MOST_PADDING, NOT_LISTED, known_model, model_names, registered_name
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.sparse_spec import in_layout
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import DraftKind
from swiftspec.policies.effects import Role

if TYPE_CHECKING:
    from swiftspec.planner.under_load.composed_engine import DraftModel

_HEADS_WRITTEN = {"eagle-3": "eagle3", "peagle": "p-eagle"}
_PARALLEL = "pard"  # before the name of the model that a parallel draft was made of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model whose shape is known, though its weights may not be here.

    vocabulary: of models in the registry. directory: of models from elsewhere. kind: of a draft. drafter: what a draft
    from a directory is, if it is no plain model. products: of a head's forwards, beside those of its layers.
    feature_bytes: of the hidden states that a head reads for a token, in bf16. block_tokens: most that a block drafter
    proposes at once; 0 if its directory is not here.
    """

    name: str
    spec: ModelSpec
    vocabulary: str | None
    directory: Path | None
    kind: DraftKind = DraftKind.SERIAL
    drafter: Drafter | None = None
    products: tuple[Product, ...] = ()
    feature_bytes: int = 0
    block_tokens: int = 0

    @classmethod
    def of(cls, role: Role, name: str) -> "PlannedModel":
        """From a directory with a config.json, or from the registry by a name that `registered_name` understands.

        ValueError: if it is neither; the message has the closest names.
        """
        is_path = name not in model_names() and (name.startswith((".", "/", "demo/")) or Path(name).is_dir())
        if not is_path and (known := registered_name(name, field=role)) is not None:
            found = known_model(known)
            return cls(name=known, spec=found.spec, vocabulary=found.vocabulary, directory=None)
        if name.startswith((".", "/")) and not Path(name).is_dir():
            raise FieldError(role, repr(name), "there is no such directory")
        if not is_path:
            raise unknown(role, name, model_names(), otherwise=NOT_LISTED, same_numbers=True)
        directory = model_directory(name)
        facts = draft_facts(directory, runs=False) if role is Role.DRAFT else DraftFacts()
        spec = drafter_layers(directory) if facts.kind.reads_target else read_spec(directory)
        return cls(
            name=model_name(name),
            spec=spec,
            vocabulary=None,
            directory=directory,
            kind=facts.kind,
            drafter=facts.drafter,
        )

    @property
    def stored_format(self) -> str | None:
        """Format of its checkpoint's weights; None if it has no directory. ValueError if it is not known."""
        stored = self.spec.stored
        if stored is None:
            return "bf16" if self.directory else None
        if stored.objection:
            raise ValueError(stored.objection)
        return stored.name

    @property
    def method(self) -> Method:
        """How engines call drafting with it."""
        return METHODS_BY_DRAFT.get(self.drafter or self.name, Method.MODEL)

    def beside_target(self, quant: str) -> "DraftModel":
        """This draft in a format, on its target's devices."""
        from swiftspec.planner.under_load.composed_engine import DraftModel

        return DraftModel(
            spec=self.spec,
            quant=quant,
            products=self.products,
            reads_target=self.kind.reads_target,
            method=self.method,
        )

    def in_layout(self, layout: DeviceLayout | None) -> "PlannedModel":
        """The same model, shared by a group of devices in this way."""
        return replace(self, spec=in_layout(self.spec, layout))

    def draft(self, name: str) -> "PlannedModel":
        """A draft for this target: one of `HEADS` by its name, `pard:MODEL`, or a model as `of` takes it."""
        known = _HEADS_WRITTEN.get(name.lower(), name.lower())
        if (head := HEADS.get(known)) is not None:
            if known == Drafter.MTP and not self.spec.num_mtp_layers:
                raise FieldError("draft", name, f"{self.name} has no layer for multi-token prediction")
            shape = DrafterShape.named(head, self.spec)
            return replace(self, name=known, directory=None, kind=head.kind, **shape._asdict())
        prefix, colon, model = name.partition(":")
        if colon and prefix.lower() == _PARALLEL:
            serial = PlannedModel.of(Role.DRAFT, model)
            return replace(serial, name=f"{_PARALLEL}:{serial.name}", kind=DraftKind.PARALLEL, drafter=Drafter.PARD)
        found = PlannedModel.of(Role.DRAFT, name)
        if found.drafter is Drafter.MTP and found.spec.hidden_size != self.spec.hidden_size:
            return replace(found, kind=DraftKind.SERIAL, drafter=None)  # a small model with such layers of its own
        if found.drafter is None or found.directory is None or not found.kind.reads_target:
            return found
        return replace(found, **DrafterShape.of(found.directory, found.drafter, self.spec)._asdict())


def planned_pair(target: str, draft: str, *, layout: DeviceLayout | None = None) -> tuple[PlannedModel, PlannedModel]:
    """Both models, in one layout; ValueError unless they share a vocabulary and the draft is the smaller one."""
    theirs = PlannedModel.of(Role.TARGET, target)
    if layout is not None and not layout.is_plain and theirs.spec.experts is None:
        raise FieldError("layout", layout, f"{theirs.name} has no experts, so that its ranks would share nothing")
    theirs = theirs.in_layout(layout)
    ours = theirs.draft(draft).in_layout(layout)
    if not ours.products:  # a head's vocabulary is a part of its target's
        _check_vocabularies(theirs, ours)
    sizes = [model.spec.num_parameters / 1e9 for model in (theirs, ours)]
    if sizes[1] >= sizes[0]:
        raise FieldError(
            "draft",
            f"{draft} of {sizes[1]:.3g} billion parameters",
            f"expected a smaller model than {target}, which has {sizes[0]:.3g} billion",
        )
    return theirs, ours


def _check_vocabularies(theirs: PlannedModel, ours: PlannedModel) -> None:
    """Compare vocabularies by name, by the tokenizers or, where a model has neither, by size."""
    if theirs.vocabulary and ours.vocabulary:
        if theirs.vocabulary != ours.vocabulary:
            raise FieldError(
                "draft",
                f"{ours.name}, whose vocabulary is that of {ours.vocabulary}",
                f"{theirs.name} needs a draft with that of {theirs.vocabulary}",
            )
        return
    directories = [model.directory for model in (theirs, ours) if model.directory is not None]
    if len(directories) == len((theirs, ours)) and all((path / "tokenizer.json").exists() for path in directories):
        check_pair(*directories)
    elif abs(theirs.spec.vocab_size - ours.spec.vocab_size) > MOST_PADDING:
        raise FieldError(
            "draft",
            f"{ours.name} with a vocabulary of {ours.spec.vocab_size} tokens",
            f"that of {theirs.name} has {theirs.spec.vocab_size}",
        )
