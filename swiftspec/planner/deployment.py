"""Deployment: the devices to plan for, which need not be installed here, and how models are served on them.

Its profiles are composed of op tables; see `costmodel`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import HostPoint, Profile
from swiftspec.devices import DeviceSpec, named_device, registered_device
from swiftspec.engines import Engine, engine_named
from swiftspec.engines.description import USABLE_SHARE
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.engines.words import Method
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.names import unknown
from swiftspec.models.quantisation import QUANTISATIONS, draft_format
from swiftspec.planner.planned_model import PlannedModel, planned_pair
from swiftspec.policies import policy_classes
from swiftspec.policies.base import drafts_elsewhere
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.timing.timeline import Phase

if TYPE_CHECKING:
    from swiftspec.costmodel.kernel_latency import Kernels
    from swiftspec.costmodel.routing import Routing
    from swiftspec.planner.memory import MemoryModel
    from swiftspec.planner.under_load.serving_engine import ServingEngine

MOST_NODES = 2
MOST_OUTPUT_TOKENS = 16384  # more take minutes to simulate
_QUANT, _ENGINE, _CONTEXT = "bf16", SWIFTSPEC.name, 512


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Devices to plan for, and how models are served on them.

    Parameters
    ----------
    device : str
        A registered name, or one that `registered_device` understands; kept as the registry spells it.
    num_devices : int
        At most two nodes, since a forward is divided within a node only.
    quant, draft_quant : str, optional
        Weight formats: bf16, fp8, int8, int4, mxfp4 or nvfp4. If not given, the target's is that of its directory, or
        bf16; the draft's is the one given for the target, that of its own directory, or the target's, but bf16 beside
        mxfp4 and nvfp4.
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
    draft_device : str
        Kind of further devices that a draft has to itself, beside another engine than this package's; it shares the
        others if empty.
    draft_devices : int
        Number of these.

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
    quant: str = ""
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
    draft_device: str = ""
    draft_devices: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", registered_device(self.device, field="device"))
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
            if quant and quant not in QUANTISATIONS:
                raise unknown(name, quant, QUANTISATIONS)
        if self.quant and not self.draft_quant:
            object.__setattr__(self, "draft_quant", draft_format(self.quant))
        self._check_engine()
        self._check_draft_device()
        if (layout := self.layout) is not None:
            needed, most = layout.num_devices, min(self.num_devices, self.spec.devices_per_node)
            too_many = f"it takes {needed} devices of one node, which has {most}" if needed > most else None
            if (objection := too_many or engine_named(self.engine).objection(layout)) is not None:
                raise FieldError("layout", layout, objection)

    def _check_engine(self) -> None:
        if self.host_s is not None and not 0 <= self.host_s < math.inf:
            raise FieldError("host_s", f"{self.host_s:g}", "expected a finite number, 0 or more")
        if (engine := self.served_by) is not None:
            if self.spec.engines and engine.name not in self.spec.engines:
                expected = f"one of {', '.join(self.spec.engines)}, which run on {self.device}"
                raise FieldError("engine", engine.name, f"expected {expected}")
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

    def _check_draft_device(self) -> None:
        if not self.draft_device:
            return
        if (engine := self.served_by) is None or Method.DRAFT_SERVER not in engine.methods:
            name = engine.name if engine else SWIFTSPEC.name
            raise FieldError("draft_device", self.draft_device, f"{name} asks no draft server; expected --engine vllm")
        object.__setattr__(self, "draft_device", registered_device(self.draft_device, field="draft_device"))
        most = named_device(self.draft_device).devices_per_node
        if not 1 <= self.draft_devices <= most:
            raise FieldError("draft_device", f"{self.draft_device}:{self.draft_devices}", f"expected at most {most}")

    def as_stored(self, target: PlannedModel, draft: PlannedModel) -> "Deployment":
        """The same with the formats of the models' directories where none is given. ValueError for an unknown one."""
        quant = self.quant or target.stored_format or _QUANT
        drafted = self.draft_quant or draft.stored_format or draft_format(quant)
        return replace(self, quant=quant, draft_quant=drafted)

    def pair(self, target: str, draft: str) -> tuple[PlannedModel, PlannedModel]:
        """Both models by name, as `planned_pair`, in this layout."""
        return planned_pair(target, draft, layout=self.layout)

    @property
    def all_devices(self) -> int:
        """Devices, those of a draft server included."""
        return self.num_devices + (self.draft_devices if self.draft_device else 0)

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
        """The devices and formats of a plan, under an engine with the plan's settings and then these.

        ValueError for a device that is not registered.
        """
        known = engine_named(engine).words
        planned = {word: value for word, value in plan.engine_settings.items() if word in known}
        return cls(
            device=plan.device,
            num_devices=plan.num_devices,
            quant=plan.quantisation.get(Role.TARGET, plan.target.dtype),
            draft_quant=plan.quantisation.get(Role.DRAFT, plan.draft.dtype),
            engine=engine,
            settings=planned | dict(settings or {}),
            layout=DeviceLayout.parse(plan.layout) if plan.layout else None,
            draft_device=plan.draft_device,
            draft_devices=plan.draft_devices or 1,
        )

    def serving(self, target: PlannedModel, draft: PlannedModel) -> "ServingEngine | None":
        """The engine that serves, with a pair of models; None where it is this package's own."""
        from swiftspec.planner.under_load.composed_engine import ComposedEngine

        engine, formats = self.served_by, self.as_stored(target, draft)
        if engine is None:
            return None
        return ComposedEngine(
            engine=engine,
            settings=self.settings,
            device=self.spec,
            target=target.spec,
            quant=formats.quant,
            drafts=draft.beside_target(formats.draft_quant),
        )

    @property
    def kv_dtype(self) -> str:
        """Format of keys and values, once the formats of the weights are known."""
        engine = self.served_by
        return "bf16" if engine is None else engine.kv_dtype(self.spec, self.quant or _QUANT, self.settings)

    def _read_dtype(self, model: PlannedModel) -> str:
        """As `kv_dtype`, for the times of a model's forwards."""
        engine = self.served_by
        return "bf16" if engine is None else engine.read_dtype(self.spec, self.quant, model.spec, self.settings)

    def memory(self, target: PlannedModel, draft: PlannedModel) -> "MemoryModel":
        """Memory of a device with parts of both models."""
        from swiftspec.planner.memory import MemoryModel

        engine, formats = self.served_by, self.as_stored(target, draft)
        share = USABLE_SHARE if engine is None else engine.limits(self.spec, self.settings).memory_share
        return MemoryModel(
            device=self.spec,
            specs={Role.TARGET: target.spec, Role.DRAFT: draft.spec},
            quantisation={Role.TARGET: formats.quant, Role.DRAFT: formats.draft_quant},
            kv_dtype=formats.kv_dtype,
            usable_share=share,
            draft_device=named_device(self.draft_device) if self.draft_device else None,
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

    @cached_property
    def kernels(self) -> "Kernels":
        """Kernel latencies from op tables, else by roofline. ValueError for tables of another device or engine."""
        from swiftspec.costmodel.shipped import kernels_of

        return kernels_of(self.device, framework=self._library, path=self.op_tables)

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
        from swiftspec.planner.under_load.composed_engine import draft_host_of, host_of

        engine, formats = self.served_by, self.as_stored(target, draft)
        late_s = round_s = 0.0
        if engine is not None:
            limits = engine.limits(self.spec, self.settings)
            late_s = engine.late_by(None, limits)
            round_s = engine.constants().round_s + engine.late_by(draft.method, limits) - late_s
        own = Host.of("trtllm") if self.host_s is None else Host(step_s=self.host_s)
        profile = device_profile(
            RoleModel(
                model=target,
                quant=formats.quant,
                kv_dtype=formats._read_dtype(target),
                host=host_of(engine.constants(), late_s=late_s) if engine else own,
                round_s=round_s,
            ),
            RoleModel(
                model=draft,
                quant=formats.draft_quant,
                kv_dtype=formats._read_dtype(draft),
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
        if engine is None or not self.draft_device or draft.method is not Method.MODEL:
            return profile
        late_by = engine.late_by(Method.DRAFT_SERVER, limits) - engine.late_by(draft.method, limits)
        beside_engine = replace(
            formats,
            device=self.draft_device,
            num_devices=self.draft_devices,
            engine=SWIFTSPEC.name,
            settings={},
            layout=None,
            op_tables=None,
            draft_device="",
        )
        drafts = beside_engine.profile(target, draft, max_context=max_context)
        return with_draft_server(profile, drafts, round_s=late_by, provenance=Provenance.COMPOSED)


def with_draft_server(profile: Profile, drafts: Profile, *, round_s: float, provenance: Provenance) -> Profile:
    """A profile whose drafts on devices of their own are those of another one.

    round_s: what a step takes longer that verifies a server's drafts. provenance: of that.

    ValueError: if the other profile is of another draft, or of an engine's server.
    """
    if drafts.served is not None:
        raise FieldError("draft_device", drafts.served.engine, "expected a profile of swiftspec's own engine")
    if not _is_same(profile.draft.model, drafts.draft.model):
        raise FieldError(
            "draft_device", drafts.draft.model, f"it was profiled with that draft; the plan's is {profile.draft.model}"
        )
    rounds = [
        HostPoint(
            phase=Phase.COMMIT,
            rows=1,
            policy=policy.name,
            quantiles_s=(round_s,) * NUM_QUANTILES,
            num_samples=1,
            provenance=provenance,
        )
        for policy in policy_classes()
        if round_s and drafts_elsewhere(policy())
    ]
    alone = drafts.model_copy(update={"steps": tuple(step for step in drafts.steps if step.role is Role.DRAFT)})
    return profile.model_copy(update={"host": (*profile.host, *rounds), "draft_profile": alone})


def _is_same(one: str, other: str) -> bool:
    return one == other or (Path(one).is_dir() and Path(one).resolve() == Path(other).resolve())
