"""Measurement of steps that several sequences share, on the engine and by its own scheduler."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from queue import SimpleQueue

import numpy as np

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent
from swiftspec.errors import FieldError
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.profiler.benches import Bench
from swiftspec.profiler.prompts import Prompts
from swiftspec.profiler.shared_programs import MOST_ROWS, ColocatedSharing, DisaggregatedSharing, HeadSharing, stages
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import SharingPoint, SharingTable
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline

_PASSES, _REPEATS = 2, 6
_LEAST_SAMPLES = 4  # of a point
# Requests begin together, this much later than they are expected to have read their prompts.
_GATHERING_FACTOR, _GATHERING_S = 1.5, 0.3


def check_max_sequences(max_sequences: int) -> None:
    """ValueError for more sequences than a step has rows, or fewer than one."""
    if not 1 <= max_sequences <= MOST_ROWS:
        raise FieldError("max_sequences", max_sequences, f"expected 1 to {MOST_ROWS}, the rows of a step")


def measure_sharing(
    engine: Launcher, bench: Bench, *, spec: ModelSpec, prompt: Prompts, max_sequences: int, contexts: Sequence[int]
) -> "Samples":
    """Steps of 1, 2, 4 .. sequences at the shortest and the longest of some contexts, for both models.

    engine: of the bench, for at least `max_sequences` requests at once.
    spec: the target's, for its longest context.
    max_sequences: at least 2.
    contexts: in ascending order. Those that leave no room for the largest step are left out.
    """
    num_requests = stages(max_sequences)[0]
    possible = [context for context in contexts if context + MOST_ROWS <= spec.max_position]
    apart = HeadSharing if engine.draft_facts.kind.reads_target else DisaggregatedSharing
    program = apart if bench.layout is Layout.DISAGGREGATED else ColocatedSharing
    samples = Samples(bench)
    token_s = 0.0  # until requests have read the prompts of all, for each token of one
    for context in sorted({*possible[:1], *possible[-1:]}):
        # The first time, requests do not wait for each other: it compiles shapes, and tells how fast prompts are read.
        repeats = [1, *[_REPEATS] * _PASSES] if not token_s else [_REPEATS] * _PASSES
        for number in repeats:
            begin_s = time.perf_counter() + _GATHERING_FACTOR * token_s * context + _GATHERING_S * bool(token_s)
            requests = [
                program(index=index, num_requests=num_requests, begin_s=begin_s, repeats=number)
                for index in range(num_requests)
            ]
            timelines = _timelines(engine, [(policy, prompt(context)) for policy in requests])
            if token_s:
                samples.add(context, shared_steps(timelines, since_s=begin_s))
            token_s = _prefill_s(timelines) / context
    return samples


def shared_steps(timelines: Iterable[Timeline], *, since_s: float) -> Iterator[tuple[int, Span]]:
    """Steps since a time whose requests had equally many rows each: number of requests, and the span of one of them.

    In order of time for each process. Requests that shared a step have spans with exactly the same times.
    """
    steps: dict[tuple[Role, int, float, float], list[Span]] = defaultdict(list)
    for timeline in timelines:
        for span in timeline.spans:
            if span.phase in COMPUTING and span.start_s >= since_s:
                steps[span.role, span.group, span.start_s, span.end_s].append(span)
    for _, spans in sorted(steps.items()):
        first = spans[0]
        alike = all((span.phase, span.model, span.rows) == (first.phase, first.model, first.rows) for span in spans)
        if alike and first.phase in (Phase.VERIFY, Phase.EXPAND):
            yield len(spans), first


def _prefill_s(timelines: Sequence[Timeline]) -> float:
    """Seconds from the first request's beginning until all had read their prompts."""
    begun_s = min(timeline.start_s for timeline in timelines)
    prefills = (span for timeline in timelines for span in timeline.spans if span.phase is Phase.PREFILL)
    return max(span.end_s for span in prefills) - begun_s


def _timelines(engine: Launcher, requests: Sequence[tuple[Policy, tuple[int, ...]]]) -> list[Timeline]:
    """Timelines of programs with their prompts, begun together; each is named by its prompt's length."""
    queues = [SimpleQueue[RequestEvent]() for _ in requests]
    for (policy, prompt), queue in zip(requests, queues, strict=True):
        task = Task(prompt_id=str(len(prompt)), request=Request(prompt=prompt, max_new_tokens=1))
        engine.submit(policy, task, sampler=Sampler(), deliver=queue.put)
    timelines = []
    for queue in queues:
        while isinstance(event := queue.get(), tuple):
            pass  # committed tokens
        if isinstance(event, Exception):
            raise event
        timelines.append(event.timeline)
    return timelines


class Samples:
    """Seconds of a bench's steps, and of the host between them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._seconds: dict[tuple[SharingTable, int, int, int], list[float]] = defaultdict(list)
        # The host's time between two steps of a process, by the forwards before and after, and rows of each request;
        # then by sequences.
        self._gaps_s: dict[tuple[Role, Phase, Phase, int], dict[int, list[float]]]
        self._gaps_s = defaultdict(lambda: defaultdict(list))

    def add(self, context: int, steps: Iterable[tuple[int, Span]]) -> None:
        """Take steps of one context; if ranks divide a group, only the steps of that group."""
        of_context = list(steps)
        for sequences, span in of_context:
            table = self._table(span.model)
            if table.ranks > 1 or not self._bench.ranks:
                key = (table, sequences, sequences * span.rows, context)
                self._seconds[key].append(span.end_s - span.start_s)
        for (was_of, last), (sequences, span) in pairwise(of_context):
            if (was_of, last.role, last.group, last.rows) == (sequences, span.role, span.group, span.rows):
                gap_s = span.start_s - last.end_s
                self._gaps_s[span.role, last.phase, span.phase, span.rows][sequences].append(gap_s)

    def host_shares(self) -> Iterator[float]:
        """Shares of a request's host time that each further request of a step adds, 0 to 1; one of each kind of gap."""
        for by_sequences in self._gaps_s.values():
            median_s = {
                sequences: float(np.median(gaps_s))
                for sequences, gaps_s in by_sequences.items()
                if len(gaps_s) >= _LEAST_SAMPLES
            }
            for sequences, gap_s in median_s.items():
                if sequences > 1 and 1 in median_s:
                    yield min(1.0, max(0.0, (gap_s / median_s[1] - 1) / (sequences - 1)))

    def _table(self, role: Role) -> SharingTable:
        bench = self._bench
        is_apart = bench.layout is Layout.DISAGGREGATED
        holder = role if is_apart else Role.TARGET
        return SharingTable(role, len(bench.groups[holder]), bench.ranks.get(holder, 1), is_apart)

    def points(self) -> Iterator[SharingPoint]:
        """A point for every kind of step that was seen several times."""
        for (table, sequences, rows, context), seconds in self._seconds.items():
            if len(seconds) >= _LEAST_SAMPLES:
                yield SharingPoint(
                    **table._asdict(),
                    sequences=sequences,
                    rows=rows,
                    context=context,
                    median_s=float(np.median(seconds)),
                    num_samples=len(seconds),
                    provenance=Provenance.MEASURED,
                )
