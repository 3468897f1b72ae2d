"""Costs of a policy's steps, for the texts of a trace."""

from collections.abc import Mapping

from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.timing.step_costs import StepCosts
from swiftspec.timing.steps import Latencies

__all__ = ["candidate_costs", "policy_costs"]


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
