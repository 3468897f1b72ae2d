"""Plan: which policy, which shape, on which devices, what to expect of it, and what that rests on. No torch here."""

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from swiftspec.documents import Document, Facts, ModelRef
from swiftspec.policies import Layout, Policy, make_policy
from swiftspec.policies.base import Value
from swiftspec.policies.effects import Role
from swiftspec.profile import Provenance
from swiftspec.timeline import Metrics

__all__ = ["Basis", "Candidate", "Plan", "Prediction"]


class Basis(Facts):
    """A file the plan was computed from: where, and its SHA-256."""

    path: str
    sha256: str


class Prediction(Facts):
    """What the simulator expects of a candidate.

    tokens_per_s_low, tokens_per_s_high: 95 % confidence interval of the mean over prompts. provenance: share of the
    predicted time that rests on latencies of each provenance.
    """

    metrics: Metrics
    tokens_per_s_low: float
    tokens_per_s_high: float
    provenance: dict[Provenance, float]


class Candidate(Facts):
    """A policy with its shape, on device groups, and its prediction.

    groups: device numbers per role; a target-only or co-located policy has the target's group alone.
    """

    policy: str
    shape: dict[str, Value]
    groups: dict[Role, tuple[int, ...]]
    prediction: Prediction

    @model_validator(mode="after")
    def _check(self) -> Self:
        policy = self.build()
        roles = {Role.TARGET, Role.DRAFT} if policy.layout is Layout.DISAGGREGATED else {Role.TARGET}
        if set(self.groups) != roles:
            found = ", ".join(sorted(self.groups)) or "nobody"
            raise ValueError(f"groups are of {found}; {self.policy} needs those of {', '.join(sorted(roles))}")
        devices = [device for group in self.groups.values() for device in group]
        if len(set(devices)) < len(devices) or not all(self.groups.values()):
            raise ValueError(f"groups are {list(self.groups.values())}; expected non-empty and disjoint ones")
        if len(self.groups[Role.TARGET]) % policy.target_groups:
            raise ValueError(
                f"groups has {len(self.groups[Role.TARGET])} devices of the target; "
                f"{self.policy} splits them into {policy.target_groups} equal groups"
            )
        return self

    def build(self) -> Policy:
        """The policy object."""
        return make_policy(self.policy, **self.shape)

    @property
    def devices(self) -> set[int]:
        return {device for group in self.groups.values() for device in group}

    @property
    def split(self) -> str:
        """`target+draft` device counts, as 1+1; a single number for one group."""
        return "+".join(str(len(self.groups[role])) for role in Role if role in self.groups)

    def describe(self) -> str:
        """`swiftspec 1+1 (verify_rows=8, expand_rows=4)`; tables are left out."""
        shape = ", ".join(f"{name}={value}" for name, value in self.shape.items() if not isinstance(value, tuple))
        return f"{self.policy} {self.split}" + (f" ({shape})" if shape else "")


class Plan(Document):
    """The chosen candidate, and the best one of every other policy, best first.

    ties: candidates that the noise does not tell from the chosen one, which is the simplest of them.
    """

    schema_name: ClassVar[str] = "swiftspec.plan"
    schema_version: ClassVar[int] = 1

    device: str
    num_devices: int = Field(ge=1)
    target: ModelRef
    draft: ModelRef
    profile: Basis
    trace: Basis
    max_new_tokens: int = Field(ge=1)
    chosen: Candidate
    alternatives: tuple[Candidate, ...]
    ties: tuple[str, ...] = ()
    num_simulated: int
    rejected: dict[str, int]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for candidate in (self.chosen, *self.alternatives):
            if not candidate.devices <= set(range(self.num_devices)):
                listed = ", ".join(map(str, sorted(candidate.devices)))
                raise ValueError(f"{candidate.policy} is on devices {listed}; num_devices is {self.num_devices}")
        if len(self.candidates) <= len(self.alternatives):
            raise ValueError(f"alternatives are {[c.policy for c in self.alternatives]}; expected one of each policy")
        return self

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        """The chosen candidate and its alternatives, by policy."""
        return {candidate.policy: candidate for candidate in (self.chosen, *self.alternatives)}
