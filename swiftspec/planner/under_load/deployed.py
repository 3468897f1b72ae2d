"""A model on devices under an engine: the seconds of its steps, and what decides how a load is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

from swiftspec.costmodel.forward import Host
from swiftspec.costmodel.shipped import kernels_of
from swiftspec.costmodel.steps import ComposedSteps, StepWork
from swiftspec.devices import DeviceSpec
from swiftspec.engines.constants import Constants
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.option import Option
from swiftspec.planner.under_load.served import Chains, EngineUnderLoad
from swiftspec.policies import Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.scheduler.prefix_cache import PrefixCache

__all__ = ["Deployed", "draft_host_of", "host_of"]


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A target on a group of devices.

    Parameters
    ----------
    engine : Engine
    device : DeviceSpec
    degree : int
    spec : ModelSpec
    quant : str
        Format of the weights.
    stored : str
        Format that they are kept in, where another one stands for their kernels; `quant` if empty.
    settings : mapping of str to str
        The user's limits, by the engine's words.
    constants : Constants, optional
        The engine's fitted ones if not given.
    context : int
        Tokens of the longest request, which bounds what else is in memory.
    """

    engine: Engine
    device: DeviceSpec
    degree: int
    spec: ModelSpec
    quant: str
    stored: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    constants: Constants | None = None
    context: int = 4096

    @cached_property
    def limits(self) -> StepLimits:
        """The engine's limits on this device, with the user's."""
        return self.engine.limits(self.device, self.settings)

    @cached_property
    def added(self) -> Constants:
        """What the engine adds to its kernels."""
        return self.constants or self.engine.constants()

    @property
    def _experts(self) -> str | None:
        return self.engine.own_experts.get(f"{self.device.name}:{self.quant}")

    @cached_property
    def steps(self) -> ComposedSteps:
        """The devices' part of the target's steps."""
        return _steps(
            self.engine.op_tables,
            self.engine.collective,
            self._experts,
            self.device.name,
            self.degree,
            self.spec,
            self.quant,
            self.kv_dtype,
        )

    @property
    def kv_dtype(self) -> str:
        """Format of keys and values."""
        return "fp8" if {self.quant, f"{self.device.name}:{self.quant}"} & self.engine.fp8_cache else "bf16"

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step with what the engine adds: to every layer, and the launches of a step without a graph."""
        seconds = self.steps.seconds(work)
        seconds += self._added_s
        is_graph = work.rows <= self.limits.captured_tokens and (self.engine.graphs_prompts or not work.chunks)
        return seconds if is_graph else max(seconds, self.spec.num_layers * self.added.launch_s)

    @cached_property
    def _added_s(self) -> float:
        return host_of(self.added).seconds(self.spec, quant=self.quant, degree=self.degree)

    @cached_property
    def cache_tokens(self) -> int:
        """Tokens that the KV cache has room for. ValueError if not even the weights fit."""
        return self._room(Autoregressive(), self.spec, self.stored or self.quant)

    def cache_tokens_beside(self, draft: ModelSpec, quant: str) -> int:
        """The same beside a draft in this format, whose own keys and values take room for every token, too."""
        return self._room(SerialChain(), draft, quant)

    def _room(self, policy: Policy, draft: ModelSpec, quant: str) -> int:
        memory = MemoryModel(
            device=self.device,
            specs={Role.TARGET: self.spec, Role.DRAFT: draft},
            quantisation={Role.TARGET: self.stored or self.quant, Role.DRAFT: quant},
        )
        option = Option(policy=policy, groups={Role.TARGET: tuple(range(self.degree))})
        room = memory.cached_tokens(option, context=self.context)
        if self.kv_dtype == "fp8":
            room *= 2
        if room < self.context:
            raise ValueError(memory.too_big(option, context=self.context))
        return room

    def under_load(self, chains: Chains | None = None) -> EngineUnderLoad:
        """What a simulation needs. chains: the drafting."""
        gives_up = self.engine.blocks_given_up if chains is not None and chains.reads_target else 0
        beside_draft = None if chains is None else chains.cache_tokens
        ahead = self.limits.runs_ahead and (chains is None or chains.runs_ahead)
        late_s = 0.0 if ahead else self.engine.late_s
        return EngineUnderLoad(
            rule=self.engine.rule,
            step_tokens=self.limits.step_tokens,
            max_requests=self.limits.requests,
            cache_tokens=self.cache_tokens if beside_draft is None else beside_draft,
            runs_ahead=ahead,
            step_s=lambda work: late_s + self.step_s(work),
            request_s=self.added.request_s,
            prompt_token_s=self.added.prompt_token_s,
            token_s=self.added.token_s,
            prefixes=PrefixCache(block_tokens=self.limits.prefix_block, gives_up=gives_up),
            chains=chains,
        )


def host_of(constants: Constants) -> Host:
    """What an engine adds to a forward of its target."""
    return Host(
        step_s=constants.step_s,
        layer_s=constants.layer_s,
        sparse_layer_s=constants.sparse_layer_s,
        fp8_layer_s=constants.fp8_layer_s,
        beside_device=True,
    )


def draft_host_of(constants: Constants) -> Host:
    """What it adds to a forward of a draft, which is launched inside a step."""
    return Host(layer_s=constants.draft_layer_s, beside_device=True)


@cache
def _steps(
    library: str | None,
    collective: str | None,
    experts: str | None,
    device: str,
    degree: int,
    spec: ModelSpec,
    quant: str,
    kv_dtype: str,
) -> ComposedSteps:
    """Composed once for all loads."""
    return ComposedSteps(
        spec=spec,
        kernels=kernels_of(device, framework=library, experts=experts),
        quant=quant,
        degree=degree,
        kv_dtype=kv_dtype,
        collective=collective,
    )
