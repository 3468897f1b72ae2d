"""A policy with its shape on device groups, its prediction, and the costs of its steps for controls."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from swiftspec.artifacts.metrics import Metrics
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.errors import FieldError
from swiftspec.files.document import Count, Facts, Share
from swiftspec.policies import Layout, Policy, make_policy, policy_names
from swiftspec.policies.base import Value
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.step_costs import StepCosts
from swiftspec.timing.steps import Latencies

_Speed = Annotated[float, Field(ge=0)]


class Prediction(Facts):
    """Predicted metrics of a candidate.

    If forwards have known errors, all figures are averages over these. tokens_per_s_low, tokens_per_s_high: 95 %
    interval of the mean over prompts, known errors included. provenance: share of the predicted time from latencies of
    each provenance.
    """

    metrics: Metrics
    tokens_per_s_low: _Speed
    tokens_per_s_high: _Speed
    provenance: dict[Provenance, Share]

    @field_validator("metrics")
    @classmethod
    def _has_a_speed(cls, metrics: Metrics) -> Metrics:
        """Refuse a speed of 0, since costs and errors are divided by it."""
        if metrics.figures.tokens_per_s <= 0:
            raise ValueError("expected figures.tokens_per_s above 0")
        return metrics


class Candidate(Facts):
    """A policy with its shape, on device groups, and its prediction.

    groups: device numbers per role; a target-only or co-located policy has only the target's group. ranks: processes
    that divide each of a role's groups; the default is one on a CPU, and one for each GPU. patience_s: longest that the
    target waits for its draft before it decodes alone. control: name of the control that it was planned to run under;
    None, and absent from the file, without one. costs: of its steps, for controls; None, and absent from the
    file, where a verification cannot be cut. package: name and version of the package that offers the policy;
    None, and absent from the file, for one of swiftspec's own.
    """

    policy: str
    package: str | None = Field(default=None, exclude_if=lambda package: package is None)
    shape: dict[str, Value]
    groups: dict[Role, tuple[Count, ...]]
    ranks: dict[Role, int] = Field(default_factory=dict)
    patience_s: float = Field(default=0.5, gt=0, le=3600)
    prediction: Prediction
    control: str | None = Field(default=None, exclude_if=lambda control: control is None)
    costs: StepCosts | None = Field(default=None, exclude_if=lambda costs: costs is None)

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
        for role, ranks in self.ranks.items():
            groups = policy.target_groups if role is Role.TARGET else 1
            devices_each, rest = divmod(len(self.groups.get(role, ())), groups * max(1, ranks))
            if ranks < 1 or rest or not devices_each:
                raise ValueError(f"ranks of the {role} are {ranks}; expected a divisor of the devices of its groups")
        return self

    def build(self) -> Policy:
        if self.package is not None and self.policy not in policy_names():
            raise FieldError("policy", f"{self.policy!r} of the package {self.package}, which is not installed")
        return make_policy(self.policy, **self.shape)

    @property
    def devices(self) -> set[int]:
        return {device for group in self.groups.values() for device in group}

    @property
    def tokens_per_s(self) -> float:
        """Predicted speed of one request at a time."""
        return self.prediction.metrics.figures.tokens_per_s

    @property
    def split(self) -> str:
        """As `named_split`."""
        return named_split(self.groups, self.ranks, target_groups=self.build().target_groups)

    def describe(self) -> str:
        """`swiftspec 1+1 (verify_rows=8, expand_rows=4)`; tables are left out."""
        return described(self.policy, self.split, self.shape)


def named_split(groups: Mapping[Role, tuple[int, ...]], ranks: Mapping[Role, int], *, target_groups: int = 1) -> str:
    """`target+draft` device counts, as 1+1; a single number for one group; 2x1 for two ranks with one device each."""
    counts = {role: target_groups if role is Role.TARGET else 1 for role in Role}
    return "+".join(
        named_group(len(groups[role]), ranks.get(role, 1), count) for role, count in counts.items() if role in groups
    )


def named_group(num_devices: int, ranks: int, num_groups: int = 1) -> str:
    """`2`, or `2x1`: processes that divide a model, times the devices of each. The same for each of several groups."""
    if ranks == 1:
        return str(num_devices)
    return f"{num_groups * ranks}x{num_devices // (num_groups * ranks)}"


def described(policy: str, split: str, shape: Mapping[str, Value]) -> str:
    """`swiftspec 1+1 (verify_rows=8, expand_rows=4)`; tables are left out."""
    listed = ", ".join(f"{name}={value}" for name, value in shape.items() if not isinstance(value, tuple))
    return f"{policy} {split}" + (f" ({listed})" if listed else "")


def usual_gather_s(candidate: Candidate) -> float:
    """Seconds of the draft forwards that are waited for and an answer without one, as predicted.

    0 where the models share devices.
    """
    metrics, policy = candidate.prediction.metrics, candidate.build()
    if policy.layout is not Layout.DISAGGREGATED or not metrics.drafts_per_round:
        return 0.0
    forward_s = metrics.draft_busy * metrics.mean_round_s / metrics.drafts_per_round
    return gathered_forwards(policy) * forward_s + (metrics.tail_s.median if metrics.tail_s else 0.0)


def gathered_forwards(policy: Policy) -> int:
    """Draft forwards for which verifications wait for another request's, where the draft has devices of its own.

    A draft needs those of a round, or one after a miss, and another request's may be under way.
    """
    return 1 + max(1, policy.serial_forwards)


def candidate_costs(candidate: Candidate, latencies: Latencies, trace: AcceptanceTrace) -> StepCosts:
    """Costs of a plan's candidate, as `policy_costs`."""
    degrees = {role: len(group) for role, group in candidate.groups.items()}
    return policy_costs(candidate.build(), degrees, candidate.ranks, latencies, trace)


def policy_costs(
    policy: Policy,
    degrees: Mapping[Role, int],
    ranks: Mapping[Role, int],
    latencies: Latencies,
    trace: AcceptanceTrace,
) -> StepCosts:
    """Costs by a profile's latencies, at the mean length of the traced texts while they grow.

    degrees, ranks: devices of each role's group, and the processes that divide them.
    """
    lengths = [len(prompt.prompt_tokens) + len(prompt.target_tokens) / 2 for prompt in trace.prompts]
    if policy.layout is not Layout.DISAGGREGATED:  # both models on the same devices
        degrees = dict.fromkeys(Role, degrees[Role.TARGET])
        ranks = dict.fromkeys(Role, ranks.get(Role.TARGET, 1))
    return StepCosts.of(policy, latencies, degrees=degrees, ranks=ranks, context=round(sum(lengths) / len(lengths)))
