"""Costs of a candidate's steps, for the texts of a trace."""

from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.step_costs import StepCosts
from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role

__all__ = ["candidate_costs"]


def candidate_costs(candidate: Candidate, latencies: Latencies, trace: AcceptanceTrace) -> StepCosts:
    """Costs by a profile's latencies, at the mean length of the traced texts while they grow."""
    policy = candidate.build()
    lengths = [len(prompt.prompt_tokens) + len(prompt.target_tokens) / 2 for prompt in trace.prompts]
    groups, ranks = dict(candidate.groups), dict(candidate.ranks)
    if policy.layout is not Layout.DISAGGREGATED:  # both models on the same devices
        groups[Role.DRAFT] = groups[Role.TARGET]
        ranks[Role.DRAFT] = ranks.get(Role.TARGET, 1)
    return StepCosts.of(
        policy,
        latencies,
        degrees={role: len(group) for role, group in groups.items()},
        ranks=ranks,
        context=round(sum(lengths) / len(lengths)),
    )
