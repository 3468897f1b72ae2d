"""Deployment: the devices to plan for, which need not be installed here, and how models are served on them.

Its profiles are composed of op tables; see `costmodel`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.pair import model_name
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.devices import ClusterSpec, DeviceSpec, named_device, registered_device
from swiftspec.engines import Engine, engine_named
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.engines.words import METHODS_BY_DRAFT, Method
from swiftspec.errors import FieldError
from swiftspec.models import MOST_PADDING, NOT_LISTED, QUANTISATIONS, known_model, model_names, registered_name
from swiftspec.models.block_spec import BlockSpec
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.draft_kinds import check_pair, draft_facts
from swiftspec.models.head_spec import HeadFormat, HeadSpec
from swiftspec.models.heads import HEADS, Product
from swiftspec.models.names import unknown
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.sparse_spec import in_layout
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import DraftKind
from swiftspec.policies.effects import Role

if TYPE_CHECKING:
    from swiftspec.costmodel.kernel_latency import Kernels
    from swiftspec.costmodel.routing import Routing
    from swiftspec.planner.under_load.serving_engine import DraftModel, ServingEngine

__all__ = ["Deployment", "PlannedModel", "planned_pair"]

MOST_NODES = 2
_HEADS_WRITTEN = {"eagle-3": "eagle3", "peagle": "p-eagle"}
_PARALLEL = "pard"  # before the name of the model that a parallel draft was made of
MOST_OUTPUT_TOKENS = 16384  # more take minutes to simulate
_QUANT, _ENGINE, _CONTEXT = "bf16", SWIFTSPEC.name, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model whose shape is known, though its weights may not be here.

    vocabulary: of models in the registry. directory: of models from elsewhere. kind: of a draft. products: of a head's
    forwards, beside those of its layers. feature_bytes: of the hidden states that a head reads for a token, in bf16.
    """

    name: str
    spec: ModelSpec
    vocabulary: str | None
    directory: Path | None
    kind: DraftKind = DraftKind.SERIAL
    products: tuple[Product, ...] = ()
    feature_bytes: int = 0

    @classmethod
    def of(cls, role: Role, name: str) -> "PlannedModel":
        """From a directory with a config.json, or from the registry by a name that `registered_name` understands.

        Raises
        ------
        ValueError
            If it is neither; the message has the closest names.
        """
        is_path = name not in model_names() and (name.startswith((".", "/", "demo/")) or Path(name).is_dir())
        if not is_path and (known := registered_name(name, field=role)) is not None:
            found = known_model(known)
            return cls(name=known, spec=found.spec, vocabulary=found.vocabulary, directory=None)
        if name.startswith((".", "/")) and not Path(name).is_dir():
            raise FieldError(role, repr(name), "there is no such directory")
        if not is_path:
            raise unknown(role, name, model_names(), otherwise=NOT_LISTED)
        directory = model_directory(name)
        kind = draft_facts(directory).kind if role is Role.DRAFT else DraftKind.SERIAL
        spec = read_spec(directory)
        return cls(name=model_name(name), spec=spec, vocabulary=None, directory=directory, kind=kind)

    @property
    def method(self) -> Method:
        """How engines call drafting with it; of a head from a directory EAGLE-3, of a block drafter DFlash."""
        of_kind = {DraftKind.PARALLEL: Method.PARD, DraftKind.HEAD: Method.EAGLE3, DraftKind.BLOCK: Method.DFLASH}
        return METHODS_BY_DRAFT.get(self.name) or of_kind.get(self.kind, Method.MODEL)

    def beside_target(self, quant: str) -> "DraftModel":
        """This draft in a format, on its target's devices."""
        from swiftspec.planner.under_load.serving_engine import DraftModel

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
            return replace(
                self,
                name=known,
                spec=head.spec(self.spec),
                directory=None,
                kind=head.kind,
                products=tuple(head.products(self.spec)),
                feature_bytes=head.feature_bytes(self.spec),
            )
        prefix, colon, model = name.partition(":")
        if colon and prefix.lower() == _PARALLEL:
            serial = PlannedModel.of(Role.DRAFT, model)
            return replace(serial, name=f"{_PARALLEL}:{serial.name}", kind=DraftKind.PARALLEL)
        found = PlannedModel.of(Role.DRAFT, name)
        return self._reader(found) if found.kind.reads_target else found

    def _reader(self, found: "PlannedModel") -> "PlannedModel":
        """A head or block drafter from a directory, as its config.json has it. ValueError if it is another target's."""
        assert found.directory is not None, "its kind is read from there"
        if found.kind is DraftKind.HEAD:
            head = HeadSpec.from_directory(found.directory)
            layers = head.layers_of(self.spec)
            spec, known = replace(head.untied_layer, vocab_size=head.draft_vocab_size), HEADS[head.format]
            features = len(layers) if head.format is HeadFormat.EAGLE3 else known.num_features
            sent = BF16_BYTES * head.num_hidden_states * self.spec.hidden_size
        else:
            block, sent = BlockSpec.from_directory(found.directory), 0
            features = len(block.layers_of(self.spec))
            spec, known = block.untied_layers, HEADS["dflash"]
        products = tuple(replace(known, num_features=features).products(self.spec))
        return replace(found, spec=spec, products=products, feature_bytes=sent)


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


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Devices to plan for, and how models are served on them.

    Parameters
    ----------
    device : str
        A registered name, or one that `registered_device` understands; kept as the registry spells it.
    num_devices : int
        At most two nodes, since a forward is divided within a node only.
    quant, draft_quant : str
        Weight formats: bf16, fp8, int8 or int4. The draft's defaults to the target's.
    engine : str
        The engine that will serve, `NAME` or `NAME@RELEASE`; this package's own if not given.
    settings : mapping of str to str
        Limits of another engine than this package's, by its own words, such as max_num_seqs.
    host_s : float, optional
        Host time of a step in seconds; what is assumed for the engine if not given.
    context : int
        Prompt tokens.
    output_tokens : int, optional
        Output tokens of each request; 256 if not given.
    draft_kv_budget : int, optional
        Tokens that the draft's KV cache keeps, the first ones and the latest, so that its forwards cost no more behind
        a longer context. For predictions: the engine has no such draft, and acceptance is taken as it is without.
    layout : DeviceLayout, optional
        How a group of devices shares a target with experts, and its draft; any group divides both if not given.
    expert_correlation : float, optional
        How independently consecutive tokens choose their experts: 1 independently, 0 all the same ones. That of
        `recorded_routing` if not given.
    recorded_routing : Routing, optional
        The same as a trace has it, which plans put here; an assumed one if not given.
    op_tables : Path, optional
        Op tables as `swiftspec import` writes them; the packaged ones if not given.

    Raises
    ------
    ValueError
        If a name is unknown (the message has the closest ones) or a number is out of range.

    Examples
    --------
    >>> h800 = swiftspec.Deployment(device="h800", num_devices=8, quant="int4")
    >>> h800.device, h800.spec.memory_bytes
    ('h800-sxm', ...)
    """

    device: str
    num_devices: int
    quant: str = _QUANT
    draft_quant: str = ""
    engine: str = _ENGINE
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    host_s: float | None = None
    context: int = _CONTEXT
    output_tokens: int | None = None
    draft_kv_budget: int | None = None
    layout: DeviceLayout | None = None
    expert_correlation: float | None = None
    recorded_routing: "Routing | None" = None
    op_tables: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", registered_device(self.device, field="device"))
        object.__setattr__(self, "draft_quant", self.draft_quant or self.quant)
        most = MOST_NODES * self.spec.devices_per_node
        if not 1 <= self.num_devices <= most:
            raise FieldError(
                "num_devices",
                self.num_devices,
                f"expected 1 to {most}, which are {MOST_NODES} nodes of {self.device}",
            )
        if self.output_tokens is not None and not 1 <= self.output_tokens <= MOST_OUTPUT_TOKENS:
            raise FieldError("output_tokens", self.output_tokens, f"expected 1 to {MOST_OUTPUT_TOKENS}")
        if self.draft_kv_budget is not None and self.draft_kv_budget < 1:
            raise FieldError("draft_kv_budget", self.draft_kv_budget, "expected at least 1")
        if self.expert_correlation is not None and not 0 <= self.expert_correlation <= 1:
            raise FieldError("expert_correlation", f"{self.expert_correlation:g}", "expected 0 to 1")
        for name, quant in (("quant", self.quant), ("draft_quant", self.draft_quant)):
            if quant not in QUANTISATIONS:
                raise unknown(name, quant, QUANTISATIONS)
        self._check_engine()
        if (layout := self.layout) is not None:
            needed, most = layout.num_devices, min(self.num_devices, self.spec.devices_per_node)
            too_many = f"it takes {needed} devices of one node, which has {most}" if needed > most else None
            if (objection := too_many or engine_named(self.engine).objection(layout)) is not None:
                raise FieldError("layout", layout, objection)

    def _check_engine(self) -> None:
        if self.host_s is not None and not 0 <= self.host_s < math.inf:
            raise FieldError("host_s", f"{self.host_s:g}", "expected a finite number, 0 or more")
        if (engine := self.served_by) is not None:
            engine.limits(self.spec, self.settings)  # raises for one that it does not have
        elif self.settings:
            word, value = next(iter(self.settings.items()))
            raise FieldError(f"set {word}", value, f"it needs another engine than {SWIFTSPEC.name}")
        elif self.host_s is not None and "int4" in (self.quant, self.draft_quant):
            raise FieldError(
                "host_s",
                f"{self.host_s:g}",
                f"forwards of {SWIFTSPEC.name} in int4 are published, host time included",
            )

    def pair(self, target: str, draft: str) -> tuple[PlannedModel, PlannedModel]:
        """Both models by name, as `planned_pair`, in this layout."""
        return planned_pair(target, draft, layout=self.layout)

    @property
    def sizes(self) -> frozenset[int] | None:
        """Devices that a group may have, where the layout says it; any if None."""
        return None if self.layout is None else frozenset({self.layout.num_devices})

    @property
    def served_by(self) -> Engine | None:
        """The engine that will serve, if it is another one than this package's."""
        found = engine_named(self.engine)
        return None if found.name == SWIFTSPEC.name else replace(found, host_s=self.host_s)

    @classmethod
    def of_plan(cls, plan: Plan, *, engine: str, settings: Mapping[str, str] | None = None) -> "Deployment":
        """The devices and formats of a plan, under an engine. ValueError for a device that is not registered."""
        return cls(
            device=plan.device,
            num_devices=plan.num_devices,
            quant=plan.quantisation.get(Role.TARGET, plan.target.dtype),
            draft_quant=plan.quantisation.get(Role.DRAFT, plan.draft.dtype),
            engine=engine,
            settings=settings or {},
            layout=DeviceLayout.parse(plan.layout) if plan.layout else None,
        )

    def serving(self, target: PlannedModel, draft: PlannedModel) -> "ServingEngine | None":
        """The engine that serves, with a pair of models; None where it is this package's own."""
        from swiftspec.planner.under_load.serving_engine import ServingEngine

        engine = self.served_by
        if engine is None:
            return None
        return ServingEngine(
            engine=engine,
            settings=self.settings,
            device=self.spec,
            target=target.spec,
            quant=self.quant,
            draft=draft.beside_target(self.draft_quant),
        )

    @property
    def _library(self) -> str | None:
        """Library of the op tables; None for the usual one."""
        return self.served_by.op_tables if self.served_by else None

    @property
    def routing(self) -> "Routing":
        """Agreement between the experts of consecutive tokens."""
        from swiftspec.costmodel.routing import ASSUMED_ROUTING, Routing

        if self.expert_correlation is None:
            return self.recorded_routing or ASSUMED_ROUTING
        return Routing(correlation=self.expert_correlation, source="given")

    @property
    def spec(self) -> DeviceSpec:
        """One device: bytes, bytes per second, FLOP per second."""
        return named_device(self.device)

    @property
    def cluster(self) -> ClusterSpec:
        """All devices, and the links between them."""
        return ClusterSpec(device=self.spec, num_devices=self.num_devices)

    @cached_property
    def kernels(self) -> "Kernels":
        """Kernel latencies from op tables, else by roofline. ValueError for tables of another device or engine."""
        from swiftspec.costmodel.device_profile import engine_kernels

        return engine_kernels(self.device, library=self._library, op_tables=self.op_tables)

    def profile(self, target: PlannedModel | str, draft: PlannedModel | str, *, max_context: int) -> Profile:
        """Forward latencies of a pair, composed of the kernels, and in int4 of published forwards.

        Parameters
        ----------
        target, draft : PlannedModel or str
            Models, or names of them, as `plan` takes them.
        max_context : int
            Tokens of the longest prefix.
        """
        target = PlannedModel.of(Role.TARGET, target) if isinstance(target, str) else target
        draft = target.draft(draft) if isinstance(draft, str) else draft
        from swiftspec.costmodel.compose import RoleModel
        from swiftspec.costmodel.device_profile import device_profile
        from swiftspec.costmodel.forward import Host
        from swiftspec.costmodel.published import SwiftSpecKernels
        from swiftspec.planner.under_load.serving_engine import draft_host_of, host_of

        engine = self.served_by
        own = Host.of("trtllm") if self.host_s is None else Host(step_s=self.host_s)
        return device_profile(
            RoleModel(model=target, quant=self.quant, host=host_of(engine.constants()) if engine else own),
            RoleModel(
                model=draft,
                quant=self.draft_quant or self.quant,
                host=draft_host_of(engine.constants()) if engine else own,
                kv_budget=self.draft_kv_budget,
                feature_bytes=draft.feature_bytes,
            ),
            device=self.device,
            num_devices=self.num_devices,
            max_context=max_context,
            library=self._library,
            op_tables=self.op_tables,
            int4_forwards=None if engine else SwiftSpecKernels,
            routing=self.routing,
        )
