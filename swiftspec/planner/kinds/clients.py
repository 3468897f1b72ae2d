"""Clients that decode at the same time under a draft on devices of its own, simulated.

Such a draft works while the target verifies, so its rounds depend on how long forwards take, and those on the number of
clients. Prompts are left out: requests begin with a short one, forwards are priced at the whole context, and only the
time counts in which all clients decode. Texts are the beginnings of all traced ones, as for rounds that are priced.
"""

from typing import NamedTuple

from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.timeline import Phase
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.option import Option
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.jobs import ServingRun
from swiftspec.simulator.latency import LatencyDraw, LatencyTable
from swiftspec.simulator.serving import Job, Serving

__all__ = ["Decoded", "decode_together"]

_PROMPT_TOKENS = 2
_OUTPUT_TOKENS = 96  # of a request
_LEAST_REQUESTS, _REQUESTS_PER_CLIENT = 24, 2
_DRAFTS_WAITED_FOR = 2  # of a verification, as `artifacts.gathering` has it


class Decoded(NamedTuple):
    """Means while all clients decode: one client's tokens per second and round, and how busy the models are."""

    tokens_per_s: float
    tokens_per_round: float
    draft_busy: float
    target_busy: float


class _AtContext(LatencyTable):
    """Latencies of forwards with a longer context than the simulated texts have."""

    def __init__(self, latencies: Latencies, longer: int) -> None:
        super().__init__(latencies)
        self._longer = longer

    def forward(
        self,
        role: Role,
        phase: Phase,
        *,
        degree: int,
        peer_busy: bool,
        rows: int,
        context: int,
        cold: bool = False,
        ranks: int = 1,
        sequences: int = 1,
    ) -> LatencyDraw:
        return super().forward(
            role,
            phase,
            degree=degree,
            peer_busy=peer_busy,
            rows=rows,
            context=context + self._longer,
            cold=cold,
            ranks=ranks,
            sequences=sequences,
        )


def decode_together(
    option: Option,
    latencies: Latencies,
    trace: AcceptanceTrace,
    clients: int,
    *,
    context: int,
    max_rows: int,
    seed: int = 0,
) -> Decoded:
    """Simulate clients that all have one request under way.

    context: mean tokens of a text, which forwards are priced at. max_rows: of a step.
    """
    table = _AtContext(latencies, max(0, context - _PROMPT_TOKENS - _OUTPUT_TOKENS // 2))
    serving = Serving(
        table,
        trace,
        option.policy,
        degrees={role: len(devices) for role, devices in option.groups.items()},
        ranks=option.ranks,
        admission=AdmissionLimits(max_running=clients),
        batch=BatchLimits(
            max_rows=max_rows,
            prefill_rows=clients * _PROMPT_TOKENS,
            gather_s=_gather_s(option, table, context) if clients > 1 else 0.0,
        ),
    )
    requests = len(trace.prompts) if clients == 1 else max(_LEAST_REQUESTS, _REQUESTS_PER_CLIENT * clients)
    jobs = [
        Job(prompt_index=number % len(trace.prompts), prompt_tokens=_PROMPT_TOKENS, output_tokens=_OUTPUT_TOKENS)
        for number in range(requests)
    ]
    return _steady(serving.run(jobs, num_clients=clients, seed=seed), clients)


def _gather_s(option: Option, table: LatencyTable, context: int) -> float:
    forward = table.forward(
        Role.DRAFT,
        Phase.EXPAND,
        degree=option.degree(Role.DRAFT),
        ranks=option.num_ranks(Role.DRAFT),
        peer_busy=True,
        rows=option.policy.expand_rows,
        context=context,
    )
    return _DRAFTS_WAITED_FOR * sum(forward.quantiles_s) / len(forward.quantiles_s)


def _steady(run: ServingRun, clients: int) -> Decoded:
    """From when all clients have a first token until the first of them has no more requests; waits for one left out."""
    timelines = [request.timeline for request in run.requests]
    begin_s = max(timeline.commits[0].end_s for timeline in timelines[:clients])
    all_begun_s = max(timeline.commits[0].end_s for timeline in timelines)
    end_s = min(end for timeline in timelines if (end := timeline.commits[-1].end_s) > all_begun_s)
    tokens, rounds, decoding_s = 0, 0, 0.0
    for timeline in timelines:
        first, *later = timeline.commits
        counted = [span for span in later if begin_s < span.end_s <= end_s]
        tokens, rounds = tokens + sum(span.tokens for span in counted), rounds + len(counted)
        decoding_s += max(0.0, min(end_s, later[-1].end_s) - max(begin_s, first.end_s))
    busy = dict.fromkeys(Role, 0.0)
    for step in run.steps:
        busy[step.role] += max(0.0, min(end_s, step.end_s) - max(begin_s, step.start_s))
    return Decoded(
        tokens_per_s=tokens / decoding_s,
        tokens_per_round=tokens / rounds,
        draft_busy=busy[Role.DRAFT] / (end_s - begin_s),
        target_busy=busy[Role.TARGET] / (end_s - begin_s),
    )
