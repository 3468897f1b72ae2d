"""Profiles of forwards that a paper prints, for a pair of which nothing else is known."""

from collections.abc import Mapping

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.timing.timeline import Phase

__all__ = ["timed_profile"]


def timed_profile(
    seconds: Mapping[tuple[Role, Phase, int], float], *, device: str, target: ModelRef, draft: ModelRef
) -> Profile:
    """Each model on a device of its own. seconds: of forwards by their rows, at any context."""
    return Profile(
        origin=Origin.here(),
        device=device,
        num_devices=2,
        target=target,
        draft=draft,
        steps=tuple(_constant(*key, one_s) for key, one_s in seconds.items()),
        host=(),
        peers_interfere=False,
    )


def _constant(role: Role, phase: Phase, rows: int, seconds: float) -> StepPoint:
    return StepPoint(
        role=role,
        phase=phase,
        degree=1,
        peer_busy=False,
        rows=rows,
        context=0,
        quantiles_s=(seconds,) * NUM_QUANTILES,
        num_samples=1,
        provenance=Provenance.PUBLISHED,
    )
