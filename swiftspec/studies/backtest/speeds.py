"""Predicted speed of a policy for a pair and devices that are not in this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from swiftspec.acceptance.model import AcceptanceModel
from swiftspec.acceptance.synthesis import synthesise, synthesise_positions
from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.profile import HostPoint, Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.costmodel.compose import RoleModel
from swiftspec.costmodel.device_profile import Int4Forwards, device_profile
from swiftspec.costmodel.published import SwiftSpecKernels
from swiftspec.files.document import ModelRef
from swiftspec.models.heads import HEADS
from swiftspec.models.published import NamedModel, known_model
from swiftspec.policies import DraftKind, Policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.timing.timeline import Phase

_NUM_PROMPTS, _NUM_TOKENS, _SEED = 16, 128, 0
_PROMPT_LENGTH = 500  # the papers' contexts are at most 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A pair on a kind of device, as in plans for this package's engine, except for what a system's figures fix.

    Parameters
    ----------
    device, target, draft : str
        Known names; for the draft also one of `HEADS`.
    quant : str
    num_devices : int
    collective : str, optional
        The all-reduce; the fastest if not given.
    int4_forwards : callable, optional
        Maps a device to whole forwards with int4 weights; SwiftSpec's if not given.
    target_host_s : float
        The engine's time around a target forward, in addition to the composed host times.
    """

    device: str
    target: str
    draft: str
    quant: str
    num_devices: int
    collective: str | None = None
    int4_forwards: Int4Forwards = SwiftSpecKernels
    target_host_s: float = 0.0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Deployment":
        """Deployment from a system's figures, which include these fields."""
        names = ("device", "target", "draft", "quant", "num_devices", "collective")
        return cls(**{name: facts[name] for name in names if name in facts})

    @property
    def profile(self) -> Profile:
        return _composed(self)

    def with_host(self, seconds: float) -> "Deployment":
        """The same deployment with `seconds` more host time per target forward."""
        return replace(self, target_host_s=seconds)


@cache
def _composed(deployment: Deployment) -> Profile:
    head, target = HEADS.get(deployment.draft), known_model(deployment.target)
    feature_bytes = head.feature_bytes(target.spec) if head else 0
    profile = device_profile(
        RoleModel(model=target, quant=deployment.quant),
        RoleModel(model=_draft(deployment), quant=deployment.quant, feature_bytes=feature_bytes),
        device=deployment.device,
        num_devices=deployment.num_devices,
        max_context=_PROMPT_LENGTH + _NUM_TOKENS,
        int4_forwards=deployment.int4_forwards,
        collective=deployment.collective,
    )
    return _with_host(profile, deployment.target_host_s) if deployment.target_host_s else profile


def _draft(deployment: Deployment) -> NamedModel:
    """The draft, which as a head has its shape from the target."""
    head = HEADS.get(deployment.draft)
    if head is None:
        return known_model(deployment.draft)
    target = known_model(deployment.target)
    products = tuple(head.products(target.spec))
    return replace(target, name=deployment.draft, spec=head.spec(target.spec), products=products)


def _with_host(profile: Profile, seconds: float) -> Profile:
    """The same profile with `seconds` more host time before each verification."""

    def later(point: HostPoint) -> HostPoint:
        if point.phase is not Phase.VERIFY:
            return point
        return point.model_copy(update={"quantiles_s": tuple(value + seconds for value in point.quantiles_s)})

    return profile.model_copy(update={"host": tuple(map(later, profile.host))})


@cache
def _decoded(
    deployment: Deployment, acceptance_model: AcceptanceModel, policy: Policy, degrees: tuple[tuple[Role, int], ...]
) -> Metrics:
    trace = synthesise(acceptance_model, **_texts(deployment))
    return _simulated(deployment, trace, policy, degrees)


@cache
def _decoded_by_position(
    deployment: Deployment,
    rates: tuple[float, ...],
    kind: DraftKind,
    policy: Policy,
    degrees: tuple[tuple[Role, int], ...],
) -> Metrics:
    trace = synthesise_positions(rates, kind=kind, **_texts(deployment))
    return _simulated(deployment, trace, policy, degrees)


def _texts(deployment: Deployment) -> dict[str, Any]:
    """Sizes of the synthesised prompts, and the models that they are of."""
    model = ModelRef(model="synthetic", dtype=deployment.quant)
    return {
        "num_prompts": _NUM_PROMPTS,
        "prompt_length": _PROMPT_LENGTH,
        "num_tokens": _NUM_TOKENS,
        "seed": _SEED,
        "target": model,
        "draft": model,
    }


def _simulated(
    deployment: Deployment, trace: AcceptanceTrace, policy: Policy, degrees: tuple[tuple[Role, int], ...]
) -> Metrics:
    simulation = Simulator(deployment.profile, trace).run(policy, degrees=dict(degrees), seed=_SEED)
    return measure(simulation.timelines)


def decoding(
    deployment: Deployment, acceptance_model: AcceptanceModel, policy: Policy, degrees: Mapping[Role, int]
) -> Metrics:
    """Metrics of a policy on synthesised prompts; `decoding_tokens_per_s` leaves out the prefill."""
    key = tuple(sorted(degrees.items()))
    return _decoded(deployment, acceptance_model, policy, key)


def decoding_by_position(
    deployment: Deployment, rates: tuple[float, ...], kind: DraftKind, policy: Policy, degrees: Mapping[Role, int]
) -> Metrics:
    """As `decoding`, for a draft whose acceptance is known by position: conditional rates."""
    return _decoded_by_position(deployment, rates, kind, policy, tuple(sorted(degrees.items())))
