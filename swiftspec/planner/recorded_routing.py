"""Routing recorded in a trace, for deployments of targets with as many experts, and for plans' own profiles."""

from dataclasses import replace
from pathlib import Path

from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.costmodel.measured_routing import measured_routing
from swiftspec.costmodel.routed_profile import routed_profile
from swiftspec.costmodel.routing import ASSUMED_ROUTING
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.planned_model import PlannedModel


def with_routed_profile(planned: Planned) -> Planned:
    """A plan with the profile that its simulations take, of a sparse target that of the trace's texts; not to save."""
    return replace(planned, profile=routed_profile(planned.profile, planned.trace))


def with_recorded_routing(deployment: Deployment, target: PlannedModel, trace: Path | None) -> Deployment:
    """The deployment with the routing of a trace, or with the reason why that is not used.

    Unchanged without a trace, with an `expert_correlation`, and for a target without experts. ValueError, in one
    sentence, if the file is no trace.
    """
    experts = target.spec.experts
    if trace is None or experts is None or deployment.expert_correlation is not None:
        return deployment
    measured = measured_routing(AcceptanceTrace.load(trace), file=trace.name)
    if measured is None:
        return _assumed(deployment, f"{trace.name} has no routed experts of consecutive tokens")
    ours, theirs = (experts.num_experts, experts.num_active), (measured.num_experts, measured.num_active)
    if ours != theirs:
        return _assumed(
            deployment,
            f"the target of {trace.name} has {theirs[0]} experts, {theirs[1]} of them active, and {target.name} "
            f"{ours[0]} and {ours[1]}",
        )
    return replace(deployment, recorded_routing=measured.routing())


def _assumed(deployment: Deployment, reason: str) -> Deployment:
    source = f"{ASSUMED_ROUTING.source}; none is measured, since {reason}"
    return replace(deployment, recorded_routing=replace(ASSUMED_ROUTING, source=source))
