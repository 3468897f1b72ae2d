"""Loads and plans that several checks serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.workload import Arrivals, Lengths, RequestClass, make_workload
from swiftspec.workload.generate import DEFAULT_CLASSES


def drawn(
    arrivals: str,
    num_requests: int,
    *,
    prompt_tokens: str,
    output_tokens: str,
    classes: Sequence[RequestClass] = DEFAULT_CLASSES,
    seed: int = 0,
) -> Workload:
    """Requests drawn from distributions in the words of `swiftspec workload`: `closed:8`, `uniform:16:96`."""
    return make_workload(
        Arrivals.parse(arrivals, field="arrivals"),
        num_requests=num_requests,
        prompt_tokens=Lengths.parse(prompt_tokens, field="prompt_tokens"),
        output_tokens=Lengths.parse(output_tokens, field="output_tokens"),
        classes=classes,
        seed=seed,
    )


def candidate_of(plan: Plan, policy: str) -> Candidate:
    """A plan's candidate of a policy. ValueError if it has none."""
    if policy not in plan.candidates:
        raise ValueError(f"the policy is {policy!r}; the plan has {', '.join(plan.candidates)}")
    return plan.candidates[policy]


def of_policy(planned: Planned, policy: str) -> Planned:
    """A plan of one of its policies alone. ValueError if it has no such policy."""
    only = {"chosen": candidate_of(planned.plan, policy), "alternatives": ()}
    return replace(planned, plan=planned.plan.model_copy(update=only))
