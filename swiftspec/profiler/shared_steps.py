"""Measurement of steps that several sequences share: by programs whose requests the scheduler batches as any.

All requests of a sweep read their prompts, wait for each other, and then go through the same row counts together. A
stage with half as many requests follows, and so on down to one request, whose forwards have as many rows as steps of
several had. They follow within seconds, so that both are measured on the same machine, however that drifts.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue
from typing import ClassVar

import numpy as np

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent
from swiftspec.errors import FieldError
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import DraftKind, Layout, Policy, Request
from swiftspec.policies.effects import Clock, Commit, Poll, Prefill, Program, Role, Send, Stop
from swiftspec.profiler.benches import Bench
from swiftspec.profiler.programs import IN_A_ROW, SIGNAL, Measuring, expand, expand_until_told, verify
from swiftspec.profiler.prompts import Prompts
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import SharingPoint, SharingTable
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline

MOST_ROWS = BatchLimits().max_rows  # of a step
_ROWS_EACH = (8, 4, 1)
_PASSES, _REPEATS = 2, 6
_LEAST_SAMPLES = 4  # of a point
# Requests begin together, this much later than they are expected to have read their prompts.
_GATHERING_FACTOR, _GATHERING_S = 1.5, 0.3


def stages(num_requests: int) -> list[int]:
    """Numbers of requests that share steps: the powers of two up to `num_requests`, most first."""
    return [1 << power for power in reversed(range(num_requests.bit_length()))]


def rows_each(sharing: int, num_requests: int) -> list[int]:
    """Rows of each request's forwards in a stage, most first. One alone has as many as all had in other stages."""
    if sharing > 1:
        return [rows for rows in _ROWS_EACH if rows * sharing <= MOST_ROWS]
    others = stages(num_requests)[:-1]
    return sorted({more * rows for more in others for rows in rows_each(more, num_requests)}, reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing(Measuring):
    """One of the requests that share steps."""

    index: int  # place among them; the later half ends after each stage
    num_requests: int  # of the first stage
    begin_s: float  # time of the driver's clock when all have read their prompts; until then they compute single rows
    repeats: int  # forwards of every row count

    target_rows: ClassVar[int] = MOST_ROWS
    draft_rows: ClassVar[int] = MOST_ROWS

    def _stages(self) -> Iterator[Sequence[int]]:
        """Rows of this request's forwards in each stage that it takes part in."""
        for sharing in stages(self.num_requests):
            if self.index < sharing:
                yield rows_each(sharing, self.num_requests)


class ColocatedSharing(_Sharing):
    """Both models on one group, in turn."""

    name: ClassVar[str] = "colocated_sharing"
    layout: ClassVar[Layout] = Layout.COLOCATED

    def _target(self, request: Request) -> Program:
        yield Prefill(Role.TARGET, request.prompt)
        yield Prefill(Role.DRAFT, request.prompt)
        # Others read their prompts beside forwards of the same model only.
        while (yield from Clock()) < self.begin_s:
            yield from verify(request, 1)
            yield from expand(request, 1)
        for grid in self._stages():
            for rows in grid:
                for turn in range(self.repeats):
                    # Drafts go first: a request that is a step behind catches up before the next verification.
                    yield from verify(request, rows, turn=turn)
                    for _ in range(IN_A_ROW):
                        yield from expand(request, rows)
        yield Commit((0,))


class DisaggregatedSharing(_Sharing):
    """Each model on its own group; drafts run for as long as their targets do, so that both see a busy peer."""

    name: ClassVar[str] = "disaggregated_sharing"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED

    def _target(self, request: Request) -> Program:
        yield from self._target_reads(request)
        while (yield from Clock()) < self.begin_s:
            yield from verify(request, 1)
        for grid in self._stages():
            for rows in grid:
                for turn in range(self.repeats):
                    yield from verify(request, rows, turn=turn)
            yield Send(SIGNAL)  # the next stage
        yield Send(Stop())
        yield Commit((0,))

    def _draft(self, request: Request) -> Program:
        yield from self._draft_reads(request)
        while (yield from Clock()) < self.begin_s:
            yield from expand(request, 1)
        for grid in self._stages():
            yield from expand_until_told(request, grid)
        while (yield Poll()) is None:  # the target's Stop follows its last signal
            yield from expand(request, 1)


class HeadSharing(DisaggregatedSharing):
    """As `DisaggregatedSharing`, with a head apart from its target."""

    name: ClassVar[str] = "head_sharing"
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})


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
