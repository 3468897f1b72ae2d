"""Costs of a candidate's steps for the texts of a trace, and the wait of its verifications for each other."""

from collections.abc import Mapping

from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.timing.step_costs import StepCosts
from swiftspec.timing.steps import Latencies

__all__ = ["candidate_costs", "policy_costs", "usual_gather_s"]


def usual_gather_s(candidate: Candidate) -> float:
    """Seconds of two draft forwards and an answer without one, as predicted; 0 where the models share devices.

    After a miss a draft needs one forward, and another request's may be under way.
    """
    metrics = candidate.prediction.metrics
    if candidate.build().layout is not Layout.DISAGGREGATED or not metrics.drafts_per_round:
        return 0.0
    forward_s = metrics.draft_busy * metrics.mean_round_s / metrics.drafts_per_round
    return 2 * forward_s + (metrics.tail_s.median if metrics.tail_s else 0.0)


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
