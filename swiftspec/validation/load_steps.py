"""Steps that many requests shared, found in their measured timelines, and how long they took against a profile."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.profile import Profile
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.simulator.latency import LatencyTable
from swiftspec.timing.step_key import StepKey, StepTable
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline
from swiftspec.timing.warm_up import RecentForwards, WeightCache

_LEAST_STEPS = 8  # of a kind, before their time counts


class SharedStep(NamedTuple):
    """One forward over rows of several requests. context: slots that a row attends to, in the mean."""

    role: Role
    group: int
    phase: Phase
    model: Role
    num_requests: int
    num_rows: int
    context: int
    start_s: float
    seconds: float


def shared_steps(timelines: Sequence[Timeline], prompt_tokens: Sequence[int]) -> Iterator[SharedStep]:
    """Every step of the timelines, in order of time: spans with the same start and end, each with its own rows.

    prompt_tokens: length of each timeline's prompt.
    """
    parts: dict[tuple[float, float, Role, int], list[tuple[Span, int]]] = defaultdict(list)  # with their context
    for timeline, length in zip(timelines, prompt_tokens, strict=True):
        commits = timeline.commits
        ends_s = [span.end_s for span in commits]
        lengths = [*accumulate((span.tokens for span in commits), initial=length)]
        for span in timeline.spans:
            if span.phase in COMPUTING:
                context = lengths[bisect_right(ends_s, span.start_s)]
                parts[span.start_s, span.end_s, span.role, span.group].append((span, context))
    for (start_s, end_s, role, group), of_step in sorted(parts.items()):
        num_rows = sum(span.rows for span, _ in of_step)
        yield SharedStep(
            role=role,
            group=group,
            # As in the simulator, prompts are prompts only where nothing else is computed with them.
            phase=next((span.phase for span, _ in of_step if span.phase is not Phase.PREFILL), Phase.PREFILL),
            model=of_step[0][0].model,
            num_requests=len(of_step),
            num_rows=num_rows,
            context=round(sum(span.rows * context for span, context in of_step) / num_rows),
            start_s=start_s,
            seconds=end_s - start_s,
        )


def step_factors(profile: Profile, candidate: Candidate, steps: Sequence[SharedStep]) -> Mapping[StepTable, float]:
    """Measured time over profiled time, of all steps of a kind together, for every table of the profile."""
    policy = candidate.build()
    peer_busy = policy.layout is Layout.DISAGGREGATED
    degrees = {role: len(group) for role, group in candidate.groups.items()}
    degrees[Role.TARGET] //= policy.target_groups
    if others := {step.role for step in steps} - degrees.keys():
        raise ValueError(
            f"the timelines have steps of the {min(others)}; expected those of {candidate.policy}, which has none"
        )
    prices = LatencyTable(profile.latencies)
    caches: dict[tuple[Role, int, Role], WeightCache] = {}
    recent: dict[tuple[Role, int], RecentForwards] = defaultdict(RecentForwards)
    measured_s: dict[tuple[Role, Phase], list[float]] = defaultdict(list)
    profiled_s: dict[tuple[Role, Phase], float] = defaultdict(float)
    for step in steps:
        degree, ranks = degrees[step.role], candidate.ranks.get(step.role, 1)
        rows, forwards, end_s = step.num_rows, recent[step.role, step.group], step.start_s + step.seconds
        cold = forwards.is_cold(step.model, now_s=step.start_s)
        forwards.note(step.model, now_s=end_s)
        key = StepKey(step.model, step.phase, degree, rows, step.context, step.num_requests, ranks, peer_busy, cold)
        quantiles_s = prices.forward(key).quantiles_s
        measured_s[step.model, step.phase].append(step.seconds)
        profiled_s[step.model, step.phase] += fmean(quantiles_s)
        if (cost := prices.latencies.warm_up.get((step.model, degree, ranks))) is not None:
            cache = caches.setdefault((step.role, step.group, step.model), WeightCache(cost, now_s=step.start_s))
            profiled_s[step.model, step.phase] += cache.begin(step.phase, rows, now_s=step.start_s, cold=cold)
            cache.end(step.phase, rows, now_s=end_s)
    factors = {
        kind: sum(seconds) / profiled_s[kind] for kind, seconds in measured_s.items() if len(seconds) >= _LEAST_STEPS
    }
    tables = {step.table for step in profile.steps}
    return {table: factors[table.role, table.phase] for table in tables if (table.role, table.phase) in factors}
