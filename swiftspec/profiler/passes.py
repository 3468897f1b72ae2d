"""Passes over the benches of a profile: programs that measure, and policies, on every engine, as far as time allows."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from swiftspec.artifacts.profile import PASSES
from swiftspec.devices.local import Device
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.gpu.kv_cache import CAPTURE_SIZES
from swiftspec.files.document import ModelRef
from swiftspec.models.inflation import inflated_spec
from swiftspec.policies import DraftKind, Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.profiler.benches import Bench, timeline_of
from swiftspec.profiler.effort import Effort, Pace, Schedule, left_out
from swiftspec.profiler.grids import CONTEXTS, DRAFT_ROWS, HALVES_ROWS, REPEATS, TARGET_ROWS
from swiftspec.profiler.pauses import PAUSE_REPEATS, Series, fit_warm_up, measure_pauses
from swiftspec.profiler.programs import (
    AlternatingSweep,
    HeadInterruptions,
    HeadResumptions,
    HeadSweep,
    Interruptions,
    OverlappedSweep,
    Resumptions,
    TargetSweep,
)
from swiftspec.profiler.prompts import Prompts, prompts_for
from swiftspec.profiler.tensor_parallel import CollectiveSamples
from swiftspec.progress import Progress
from swiftspec.timing.timeline import DRAFTING, Phase, Timeline
from swiftspec.timing.warm_up import WarmUpCost

# A GPU's forwards are captured for these numbers of rows; others run with the next larger one.
GPU_TARGET_ROWS = CAPTURE_SIZES
GPU_DRAFT_ROWS = tuple(rows for rows in CAPTURE_SIZES if rows <= 32)
GPU_HALVES_ROWS = tuple(rows for rows in CAPTURE_SIZES if 2 <= rows <= 16)
GPU_CONTEXTS = (64, 500, 1000, 2000, 4000)
GPU_PASSES = 1  # a GPU is not shared, and capturing its forwards takes longer than measuring them
MINUTES = {"cpu": 10.0, "cuda": 5.0}  # of a profile, if it is not told otherwise
_FEW_ROWS = (1, 8, 32)  # of a first look
_SLACK = 512  # slots of the cache beyond the longest context, for rows and the tokens of a request
_log = logging.getLogger("swiftspec")


class Passes:
    """Passes over all benches, as many and as thorough as time allows.

    num_further: stages after them, for progress. sweeps: timelines of each bench. rounds: names of policies and their
    timelines.
    """

    def __init__(
        self,
        target: ModelRef,
        draft: ModelRef,
        benches: Sequence[Bench],
        *,
        device: str,
        progress: Progress,
        num_further: int,
    ) -> None:
        self.spec = inflated_spec(target)
        wanted, rows = (CONTEXTS, TARGET_ROWS) if device == "cpu" else (GPU_CONTEXTS, GPU_TARGET_ROWS)
        self._grid = [context for context in wanted if context + max(rows) <= self.spec.max_position]
        self.contexts: list[int] = []
        self.max_context = min(self.spec.max_position, max(self._grid, default=0) + _SLACK)
        self.sweeps: list[list[Timeline]] = [[] for _ in benches]
        self.rounds: list[tuple[str, Timeline]] = []
        self._pauses: dict[int, list[Series]] = defaultdict(list)  # by degree
        self.interrupted: list[Timeline] = []
        self.tp_groups = CollectiveSamples({Role.TARGET: target, Role.DRAFT: draft})
        self.num_passes = 0
        self._target, self._draft, self._benches, self._device = target, draft, benches, device
        self._progress, self._num_further = progress, num_further
        self._num_passes_wanted = self._num_done = 0
        self._num_stages = 1

    def tell(self, what: str) -> None:
        """Report the next stage."""
        self._progress(min(self._num_done, self._num_stages), self._num_stages, what)
        self._num_done += 1

    def measure(self, *, within_s: float) -> None:
        """All passes. within_s: seconds that they take at most, unless the least effort takes longer."""
        began_s = time.perf_counter()
        schedule: Schedule | None = None
        while schedule is None or schedule.has_time(self.num_passes, spent_s=time.perf_counter() - began_s):
            for done, (bench, timelines) in enumerate(zip(self._benches, self.sweeps, strict=True), start=1):
                self.tell(f"{self._pass}{bench}: loading")
                opened_s = time.perf_counter()
                with bench.open(target=self._target, draft=self._draft, max_context=self.max_context) as engine:
                    measured = _Measurement(engine, bench, prompts_for(self._target, self.spec))
                    if schedule is None:
                        schedule = self._schedule(measured, within_s, start_s=time.perf_counter() - opened_s)
                    timelines += self._bench(measured, schedule.effort)
                if bench.silent:
                    self.tp_groups.measure(bench)
                if not self.num_passes:
                    schedule.note(done, spent_s=time.perf_counter() - began_s)
            self.num_passes += 1

    def _schedule(self, measured: "_Measurement", within_s: float, *, start_s: float) -> Schedule:
        most = PASSES if self._device == "cpu" else GPU_PASSES
        layouts = [bench.layout for bench in self._benches]
        pace = measured.pace(start_s)
        schedule = Schedule(pace, layouts, within_s=within_s, most_passes=most, contexts=self._grid)
        effort = schedule.effort
        self.contexts, self._num_passes_wanted = effort.of(self._grid), effort.passes
        self._num_stages = effort.passes * len(self._benches) * (len(self.contexts) + 2) + self._num_further + 1
        if clauses := left_out(effort, most_passes=most, contexts=self._grid):
            _log.warning(
                "the models are slow; to measure for %g minutes: %s", round(within_s / 60, 1), ", ".join(clauses)
            )
        return schedule

    @property
    def _pass(self) -> str:
        return f"pass {self.num_passes + 1} of {self._num_passes_wanted}, " if self._num_passes_wanted else ""

    def _bench(self, measured: "_Measurement", effort: Effort) -> Iterator[Timeline]:
        bench = measured.bench
        what = f"{self._pass}{bench}"
        for context in self.contexts:
            self.tell(f"{what}: steps at context {context}")
            yield from measured.sweep(context, effort)
            if bench.layout is Layout.DISAGGREGATED:
                yield measured.resume(context)
                self.interrupted.append(measured.interrupt(context))
        self.tell(f"{what}: {'collectives' if bench.silent else 'host costs'}")
        if not bench.ranks:
            self.rounds += measured.policies(effort)
        if self._device == "cpu" and bench.layout is Layout.COLOCATED and not bench.ranks:
            repeats, degree = -(-PAUSE_REPEATS // effort.passes), len(bench.groups[Role.TARGET])
            self._pauses[degree] += measure_pauses(measured.engine, repeats=repeats, vocab_size=self.spec.vocab_size)

    @property
    def warm_up(self) -> tuple[WarmUpCost, ...]:
        """What pauses cost the target, for every number of cores on which they cost something."""
        costs = (fit_warm_up(series, degree=degree) for degree, series in self._pauses.items())
        return tuple(cost for cost in costs if cost)


@dataclass(frozen=True, slots=True)
class _Measurement:
    """Requests on one engine."""

    engine: Launcher
    bench: Bench
    prompt: Prompts

    @property
    def _kind(self) -> DraftKind:
        return self.engine.draft_facts.kind

    def pace(self, start_s: float) -> Pace:
        """A first look at forwards on the shortest context. start_s: what the engine's start took."""
        sweeps = new_sweeps(self.bench.layout, repeats=1, device=self.bench.device, kind=self._kind, few_rows=True)
        _, timelines = ([self._run(sweep, CONTEXTS[0]) for sweep in sweeps] for _ in range(2))  # the first warms up
        samples: dict[tuple[Phase, int], list[float]] = defaultdict(list)
        for timeline in timelines:
            for span in timeline.spans:
                samples[span.phase, span.rows].append(span.end_s - span.start_s)
        read_s = max(max(seconds) for (phase, _), seconds in samples.items() if phase is Phase.PREFILL)
        verified, expanded, fuzzy = (
            {rows: mean(seconds) for (phase, rows), seconds in samples.items() if phase is wanted}
            for wanted in (Phase.VERIFY, Phase.EXPAND, Phase.FUZZY)
        )
        return Pace(
            target=verified,
            draft={**expanded, **fuzzy} or verified,
            prompt_token_s=read_s / CONTEXTS[0],
            start_s=start_s,
        )

    def sweep(self, context: int, effort: Effort) -> list[Timeline]:
        timelines: list[Timeline] = []
        for repeats in (1, effort.repeats) if effort.discards else (effort.repeats,):
            sweeps = new_sweeps(self.bench.layout, repeats=repeats, device=self.bench.device, kind=self._kind)
            timelines = [self._run(sweep, context) for sweep in sweeps]
        return timelines  # without the first ones, which compile the shapes of this context

    def resume(self, context: int) -> Timeline:
        sweep = new_resumptions(repeats=REPEATS, device=self.bench.device, kind=self._kind)
        return drafting_alone(self._run(sweep, context))

    def interrupt(self, context: int) -> Timeline:
        interruptions = HeadInterruptions if self._kind.reads_target else Interruptions
        sweep = interruptions(target_rows_grid=(1,), draft_rows_grid=(1,), halves_rows_grid=(), repeats=2 * REPEATS)
        return self._run(sweep, context)

    def policies(self, effort: Effort) -> list[tuple[str, Timeline]]:
        """Real rounds of policies for the draft's kind, for their costs other than forwards."""
        shapes = self.bench.host_shapes(self._kind, all_shapes=effort.all_shapes)
        return [(shape.name, self._run(shape, CONTEXTS[1], max_new_tokens=effort.host_tokens)) for shape in shapes]

    def _run(self, policy: Policy, context: int, *, max_new_tokens: int = 1) -> Timeline:
        return timeline_of(self.engine, policy, self.prompt(context), max_new_tokens=max_new_tokens)


def new_sweeps(
    layout: Layout, *, repeats: int, device: Device, kind: DraftKind = DraftKind.SERIAL, few_rows: bool = False
) -> list[Policy]:
    """Measuring programs over every row count of every kind of forward, or a few of them. kind: of the draft."""
    on_cores, on_gpu = (TARGET_ROWS, DRAFT_ROWS, HALVES_ROWS), (GPU_TARGET_ROWS, GPU_DRAFT_ROWS, GPU_HALVES_ROWS)
    target, draft, halves = (
        tuple(rows for rows in grid if rows in _FEW_ROWS or not few_rows)
        for grid in (on_cores if device == "cpu" else on_gpu)
    )
    apart = HeadSweep if kind.reads_target else OverlappedSweep
    sweeps: tuple[type[OverlappedSweep | AlternatingSweep | TargetSweep], ...] = (
        (apart,) if layout is Layout.DISAGGREGATED else (AlternatingSweep, TargetSweep)
    )
    return [
        sweep(target_rows_grid=target, draft_rows_grid=draft, halves_rows_grid=halves, repeats=repeats)
        for sweep in sweeps
    ]


def new_resumptions(*, repeats: int, device: Device, kind: DraftKind = DraftKind.SERIAL) -> Policy:
    """A measuring program over every row count of the draft's first forward after a wait, on groups of its own."""
    resumptions = HeadResumptions if kind.reads_target else Resumptions
    rows = DRAFT_ROWS if device == "cpu" else GPU_DRAFT_ROWS
    return resumptions(target_rows_grid=(1,), draft_rows_grid=rows, halves_rows_grid=(), repeats=repeats)


def drafting_alone(timeline: Timeline) -> Timeline:
    """The timeline with the draft's forwards only, as `Resumptions` are made for; the target's are dropped."""
    return replace(timeline, spans=tuple(span for span in timeline.spans if span.phase in DRAFTING))
