"""An engine whose steps are composed of the op tables of its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from swiftspec.costmodel.forward import Host
from swiftspec.costmodel.shipped import kernels_of
from swiftspec.costmodel.steps import ComposedSteps, StepWork
from swiftspec.devices import DeviceSpec
from swiftspec.engines.constants import Constants
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.words import Method
from swiftspec.models.heads import Product
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.option import Option
from swiftspec.planner.under_load.serving_engine import AboveEngine, DraftMethod, ServingEngine
from swiftspec.policies import Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel(DraftMethod):
    """A draft's shape and format. products: of a head's forwards, beside those of its layers."""

    spec: ModelSpec
    quant: str
    products: tuple[Product, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ComposedEngine(ServingEngine):
    """An engine, and the models that it serves on a group of devices whose kernels are known.

    degree: devices of the group.
    quant: format of the target's weights.
    drafts: None where text is looked up, or nothing is drafted.
    settings: the user's limits, by the engine's words.
    constants: the engine's fitted ones if not given.
    context: tokens of the longest request, which bounds what else is in memory.
    """

    engine: Engine
    device: DeviceSpec
    degree: int = 1
    target: ModelSpec
    quant: str
    drafts: DraftModel | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    constants: Constants | None = None
    context: int = 4096

    def on(self, degree: int, *, context: int) -> ComposedEngine:
        return replace(self, degree=degree, context=context)

    @cached_property
    def limits(self) -> StepLimits:
        limits, ranks = self.engine.limits(self.device, self.settings), self.ranks
        if ranks == 1 or self.engine.limits_of_all_ranks:
            return limits
        return replace(limits, step_tokens=limits.step_tokens * ranks, requests=limits.requests * ranks)

    @property
    def ranks(self) -> int:
        return self.target.attention_ranks

    @cached_property
    def added(self) -> Constants:
        """What the engine adds to its kernels."""
        return self.constants or self.engine.constants()

    @property
    def above(self) -> AboveEngine:
        return AboveEngine(self.added.request_s, self.added.prompt_token_s, self.added.token_s)

    @cached_property
    def _steps(self) -> ComposedSteps:
        return self._composed(self.target, self.quant)

    def _composed(self, spec: ModelSpec, quant: str, products: tuple[Product, ...] = ()) -> ComposedSteps:
        """The devices' part of a model's steps."""
        engine, device = self.engine, self.device.name
        experts = engine.own_experts.get(f"{device}:{self.quant}")
        read = engine.read_dtype(self.device, self.quant, spec, self.settings)
        return _composed(device, engine.op_tables, experts, engine.collective, spec, quant, self.degree, read, products)

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step with what the engine adds: to every layer, and the launches of a step without a graph."""
        seconds = self._steps.seconds(work)
        seconds += self._added_s
        rows = work.of_fullest(self.ranks).rows
        is_graph = rows <= self.limits.captured_tokens and (self.engine.graphs_prompts or not work.chunks)
        return seconds if is_graph else max(seconds, self.target.num_layers * self.added.launch_s)

    @cached_property
    def _added_s(self) -> float:
        return host_of(self.added).seconds(self.target, quant=self.quant, degree=self.degree)

    def round_s(self, method: Method | None) -> float:
        """Seconds that a step takes longer if it verifies, or is formed after the one before."""
        return self.engine.late_by(method, self.limits) + (0.0 if method is None else self.added.round_s)

    def draft_s(self, forward_rows: Sequence[int]) -> Callable[[int, float], float]:
        draft = self.drafts
        assert draft is not None, "asked of an engine with a draft"
        steps = self._composed(draft.spec, draft.quant, draft.products)
        added_s = len(forward_rows) * draft.spec.num_layers * self.added.draft_layer_s

        def seconds(requests: int, context: float) -> float:
            cached = int(requests * context)
            works = (
                StepWork(sequences=requests, rows_each=each, cache_tokens=cached, sampled=requests)
                for each in forward_rows
            )
            return added_s + sum(steps.seconds(work) for work in works)

        return seconds

    def room(self, *, beside_draft: bool) -> int:
        """Tokens that the KV cache has room for, beside a draft whose own keys and values take room, too."""
        draft = self.drafts if beside_draft else None
        policy: Policy = SerialChain() if draft else Autoregressive()
        drafted, quant = (draft.spec, draft.quant) if draft else (self.target, self.quant)
        memory = MemoryModel(
            device=self.device,
            specs={Role.TARGET: self.target, Role.DRAFT: drafted},
            quantisation={Role.TARGET: self.quant, Role.DRAFT: quant},
            kv_dtype=self.engine.kv_dtype(self.device, self.quant, self.settings),
            usable_share=self.limits.memory_share,
        )
        option = Option(policy=policy, groups={Role.TARGET: tuple(range(self.degree))})
        room = memory.cached_tokens(option, context=self.context)
        if room < self.context:
            raise ValueError(memory.too_big(option, context=self.context))
        return room


def host_of(constants: Constants, *, late_s: float = 0.0) -> Host:
    """What an engine adds to a forward of its target. late_s: for steps that are formed after the one before."""
    return Host(
        step_s=constants.step_s + late_s,
        layer_s=constants.layer_s,
        sparse_layer_s=constants.sparse_layer_s,
        fp8_layer_s=constants.fp8_layer_s,
        beside_device=True,
    )


def draft_host_of(constants: Constants) -> Host:
    """What it adds to a forward of a draft, which is launched inside a step."""
    return Host(layer_s=constants.draft_layer_s, beside_device=True)


@cache
def _composed(
    device: str,
    library: str | None,
    experts: str | None,
    collective: str | None,
    spec: ModelSpec,
    quant: str,
    degree: int,
    kv_dtype: str,
    products: tuple[Product, ...],
) -> ComposedSteps:
    """Composed once for all loads."""
    return ComposedSteps(
        spec=spec,
        kernels=kernels_of(device, framework=library, experts=experts),
        quant=quant,
        degree=degree,
        kv_dtype=kv_dtype,
        collective=collective,
        products=products,
    )
