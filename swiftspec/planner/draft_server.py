"""Profiles of an engine beside which a draft server runs."""

from pathlib import Path

from swiftspec.artifacts.profile import HostPoint, Profile
from swiftspec.errors import FieldError
from swiftspec.policies import policy_classes
from swiftspec.policies.base import drafts_elsewhere
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.timing.timeline import Phase


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
