"""Measurement of a Profile: steps on every device group of possible plans, with idle and busy peer, and host costs.

Groups that several ranks divide are measured as shards, and composed (see `tensor_parallel`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, product

import numpy as np
import torch

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.routes import ExpertsTouched
from swiftspec.devices.local import Device, num_devices_here
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.cpu.model import pads_prompts
from swiftspec.engine.model.gpu.input_batch import CAPTURE_SIZES
from swiftspec.engine.model.models import feature_bytes
from swiftspec.engine.model.runner import DTYPES
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef, Origin
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.inflation import inflated_spec
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import DraftKind, Layout, Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.profiler.benches import Bench, benches_of
from swiftspec.profiler.experts_touched import experts_touched
from swiftspec.profiler.feature_hops import feature_hops
from swiftspec.profiler.grids import (
    CONTEXTS,
    DRAFT_ROWS,
    HALVES_ROWS,
    HOST_TOKENS,
    LONGEST_SHARED,
    PASSES,
    REPEATS,
    SWEEP_REPEATS,
    TARGET_ROWS,
)
from swiftspec.profiler.host_costs import arrival_point, host_points
from swiftspec.profiler.pauses import measure_pauses
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
from swiftspec.profiler.shared_steps import check_max_sequences, measure_sharing
from swiftspec.profiler.tensor_parallel import CollectiveSamples
from swiftspec.progress import Progress
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.sharing import Sharing, SharingPoint, fit_costs
from swiftspec.timing.timeline import COMPUTING, DRAFTING, Phase, Span, Timeline
from swiftspec.timing.warm_up import WarmUpCost, is_cold

__all__ = ["computed_spec", "drafting_alone", "measure_profile", "new_resumptions", "new_sweeps", "step_points"]

# A GPU's forwards are captured for these numbers of rows; others run with the next larger one.
GPU_TARGET_ROWS = CAPTURE_SIZES
GPU_DRAFT_ROWS = tuple(rows for rows in CAPTURE_SIZES if rows <= 32)
GPU_HALVES_ROWS = tuple(rows for rows in CAPTURE_SIZES if 2 <= rows <= 16)
GPU_CONTEXTS = (64, 500, 1000, 2000, 4000)
GPU_LONGEST_SHARED = 2000
GPU_PASSES = 1  # a GPU is not shared, and capturing its forwards takes longer than measuring them
_SLACK = 512  # slots of the cache beyond the longest context, for rows and the tokens of a request
LEAST_COLD_SAMPLES = 6  # a hiccup between two forwards also makes one look cold


@shared_fork_server()  # every pass has new processes; the one they are forked from is loaded once
def measure_profile(
    *,
    target: ModelRef,
    draft: ModelRef,
    device: str,
    num_devices: int,
    progress: Progress,
    ranks: int = 1,
    max_sequences: int = 1,
    passes: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Profile:
    """Measure every group size and split of `num_devices` cores or GPUs.

    ranks: on a CPU, also compose the forwards of groups divided by this many processes. max_sequences: also measure
    steps that up to this many sequences share. passes: the device's default if not given. stop: asked between passes
    whether time has run out; one pass is always measured.

    ValueError: if the device is unknown, a model cannot be loaded, or there are fewer devices than asked for or than
    ranks.
    """
    check_max_sequences(max_sequences)
    if device not in ("cpu", "cuda"):
        raise FieldError("device", repr(device), "this version measures 'cpu' and 'cuda'")
    spec = computed_spec(target)
    wanted, rows = (CONTEXTS, TARGET_ROWS) if device == "cpu" else (GPU_CONTEXTS, GPU_TARGET_ROWS)
    contexts = [context for context in wanted if context + max(rows) <= spec.max_position]
    max_context = min(spec.max_position, max(contexts, default=0) + _SLACK)
    kind = draft_facts(draft.model).kind
    benches = list(benches_of("cuda" if device == "cuda" else "cpu", num_devices, ranks, kind=kind))
    sweeps: list[list[Timeline]] = [[] for _ in benches]
    rounds: list[tuple[str, Timeline]] = []  # and their policies
    warm_up: list[WarmUpCost] = []
    interrupted: list[Timeline] = []
    tp_groups = CollectiveSamples({Role.TARGET: target, Role.DRAFT: draft})
    per_engine = len(contexts) + 1
    passes = passes or (PASSES if device == "cpu" else GPU_PASSES)
    shared = [bench for bench in benches if max_sequences > 1 and not bench.silent]
    total = passes * len(benches) * per_engine + len(shared)
    stages = product(range(1, passes + 1), zip(benches, sweeps, strict=True))
    for done, (number, (bench, timelines)) in zip(count(0, per_engine), stages, strict=False):
        if bench is benches[0] and number > 1 and stop is not None and stop():
            break
        what = f"pass {number} of {passes}, {bench}"
        progress(done, total, f"{what}: loading")
        with bench.open(target=target, draft=draft, max_context=max_context) as engine:
            measured = _Measurement(engine, bench, prompts_for(target, spec))
            for index, context in enumerate(contexts):
                progress(done + index, total, f"{what}: steps at context {context}")
                timelines += measured.sweep(context)
                if bench.layout is Layout.DISAGGREGATED:
                    timelines.append(measured.resume(context))
                    interrupted.append(measured.interrupt(context))
            progress(done + len(contexts), total, f"{what}: {'collectives' if bench.silent else 'host costs'}")
            if not bench.ranks:
                rounds += measured.policies()
            if number == 1 and device == "cpu" and bench.layout is Layout.COLOCATED and not bench.ranks:
                degree = len(bench.groups[Role.TARGET])
                cost = measure_pauses(engine, degree=degree, vocab_size=spec.vocab_size)
                warm_up += [cost] if cost else []
        if bench.silent:
            tp_groups.measure(bench)
    sharing_points: list[SharingPoint] = []
    host_shares: list[float] = []
    longest = LONGEST_SHARED if device == "cpu" else GPU_LONGEST_SHARED
    shared_contexts = [context for context in contexts if context <= longest]
    for done, bench in enumerate(shared, start=total - len(shared)):
        progress(done, total, f"{bench}: steps of up to {max_sequences} sequences")
        with bench.open(target=target, draft=draft, max_context=max_context, num_requests=max_sequences) as engine:
            samples = measure_sharing(
                engine,
                bench,
                spec=spec,
                prompt=prompts_for(target, spec),
                max_sequences=max_sequences,
                contexts=shared_contexts,
            )
            sharing_points += samples.points()
            host_shares += samples.host_shares()
    touched = _touched(target, spec, contexts) if device == "cpu" else None
    progress(total, total, "done")
    arrival, host = arrival_point(interrupted), list(host_points(rounds))
    num_bytes = feature_bytes(draft, target) if kind is DraftKind.HEAD else 0
    points = [list(_bench_points(bench, timelines)) for bench, timelines in zip(benches, sweeps, strict=True)]
    shards = [step for bench, of in zip(benches, points, strict=True) if bench.silent for step in of]
    return Profile(
        origin=_origin_on(device),
        device=device,
        num_devices=num_devices,
        target=target,
        draft=draft,
        steps=(
            *(step for bench, of in zip(benches, points, strict=True) if not bench.ranks for step in of),
            *tp_groups.composed(shards),
        ),
        host=(*host, *([arrival] if arrival else []), *feature_hops(host, feature_bytes=num_bytes)),
        collectives=tp_groups.collectives(),
        checks=tuple(
            step
            for bench, of in zip(benches, points, strict=True)
            if bench.ranks and not bench.silent
            for step in of
            if not step.cold
        ),
        padded_prompts=_padded_prompts(target, draft) if device == "cpu" else (),
        sharing=Sharing(
            points=tuple(sharing_points),
            costs=fit_costs(sharing_points),
            host_share=float(np.median(host_shares)) if host_shares else None,
        )
        if shared
        else None,
        warm_up=tuple(warm_up),
        feature_bytes=num_bytes,
        experts_touched=touched,
    )


def _origin_on(device: str) -> Origin:
    """Origin of this command, with the name that the processor or the GPUs give themselves."""
    origin = Origin.here()
    if device != "cuda":
        return origin
    return origin.model_copy(update={"device": f"{torch.cuda.get_device_name()}, {num_devices_here(device)} of them"})


def _touched(target: ModelRef, spec: ModelSpec, contexts: Sequence[int]) -> ExpertsTouched | None:
    """Experts that verifications need after prompts like those of the sweeps."""
    if spec.experts is None:
        return None
    return experts_touched(target, spec.experts, list(map(prompts_for(target, spec), contexts)), TARGET_ROWS)


def _bench_points(bench: Bench, timelines: Sequence[Timeline]) -> Iterator[StepPoint]:
    """Steps of a bench's timelines; if ranks divide a group, only the steps of that group."""
    for step in step_points(timelines, bench.groups, bench.layout, ranks=bench.ranks):
        if step.ranks > 1 or not bench.ranks:
            yield step


def _padded_prompts(target: ModelRef, draft: ModelRef) -> tuple[Role, ...]:
    models = {Role.TARGET: target, Role.DRAFT: draft}
    return tuple(role for role, reference in models.items() if pads_prompts(DTYPES[reference.dtype]))


def computed_spec(reference: ModelRef) -> ModelSpec:
    """Shape of the model as it runs: inflated if the reference says so."""
    return inflated_spec(reference.model, reference.inflate)


class _Measurement:
    """Requests on one engine."""

    def __init__(self, engine: Launcher, bench: Bench, prompt: Prompts) -> None:
        self._engine = engine
        self._bench = bench
        self._prompt = prompt
        self._kind = engine.draft_facts.kind

    def sweep(self, context: int) -> list[Timeline]:
        timelines: list[Timeline] = []
        for repeats in (1, SWEEP_REPEATS):
            sweeps = new_sweeps(self._bench.layout, repeats=repeats, device=self._bench.device, kind=self._kind)
            timelines = [self._run(sweep, context, max_new_tokens=1) for sweep in sweeps]
        return timelines  # without the first ones, which compile the shapes of this context

    def resume(self, context: int) -> Timeline:
        sweep = new_resumptions(repeats=REPEATS, device=self._bench.device, kind=self._kind)
        return drafting_alone(self._run(sweep, context, max_new_tokens=1))

    def interrupt(self, context: int) -> Timeline:
        interruptions = HeadInterruptions if self._kind.reads_target else Interruptions
        sweep = interruptions(target_rows_grid=(1,), draft_rows_grid=(1,), halves_rows_grid=(), repeats=2 * REPEATS)
        return self._run(sweep, context, max_new_tokens=1)

    def policies(self) -> list[tuple[str, Timeline]]:
        """Real rounds of policies for the draft's kind, for their costs other than forwards."""
        shapes = self._bench.host_shapes(self._kind)
        return [(shape.name, self._run(shape, CONTEXTS[1], max_new_tokens=HOST_TOKENS)) for shape in shapes]

    def _run(self, policy: Policy, context: int, *, max_new_tokens: int) -> Timeline:
        request = Request(prompt=self._prompt(context), max_new_tokens=max_new_tokens)
        generation = self._engine.generate(policy, request, request_id=str(context), sampler=Sampler())
        if generation.interrupted:
            raise KeyboardInterrupt
        return generation.timeline


def new_sweeps(layout: Layout, *, repeats: int, device: Device, kind: DraftKind = DraftKind.SERIAL) -> list[Policy]:
    """Measuring programs over every row count of every kind of forward. kind: of the draft."""
    on_cores, on_gpu = (TARGET_ROWS, DRAFT_ROWS, HALVES_ROWS), (GPU_TARGET_ROWS, GPU_DRAFT_ROWS, GPU_HALVES_ROWS)
    target, draft, halves = on_cores if device == "cpu" else on_gpu
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


def step_points(
    timelines: Sequence[Timeline],
    groups: Mapping[Role, tuple[int, ...]],
    layout: Layout,
    *,
    ranks: Mapping[Role, int],
) -> Iterator[StepPoint]:
    """Forwards of the timelines, by kind, rows and context (the request's id); warm and cold ones, but for prefills.

    groups, ranks: those of the engine that recorded the timelines.
    """
    samples: dict[tuple[Role, Phase, bool, int, int], list[float]] = defaultdict(list)
    for timeline in timelines:
        for span, cold in _forwards(timeline):
            context = 0 if span.phase is Phase.PREFILL else int(timeline.request)
            cold = cold and span.phase is not Phase.PREFILL
            samples[span.model, span.phase, cold, span.rows, context].append(span.end_s - span.start_s)
    peer_busy = layout is Layout.DISAGGREGATED
    for (role, phase, cold, rows, context), seconds in samples.items():
        if cold and len(seconds) < LEAST_COLD_SAMPLES:
            continue
        latency = Latency.of_samples(seconds, Provenance.MEASURED)
        holder = role if peer_busy else Role.TARGET
        yield StepPoint(
            role=role,
            phase=phase,
            degree=len(groups[holder]),
            ranks=ranks.get(holder, 1),
            peer_busy=peer_busy,
            cold=cold,
            rows=rows,
            context=context,
            quantiles_s=latency.quantiles_s,
            num_samples=len(seconds),
            provenance=Provenance.MEASURED,
        )


def _forwards(timeline: Timeline) -> Iterator[tuple[Span, bool]]:
    """Every forward, and whether it is cold."""
    ended_s: dict[tuple[Role, int, Role], float] = {}
    models: dict[tuple[Role, int], Role] = {}  # of each process' last forward
    for span in timeline.spans:
        if span.phase in COMPUTING:
            process, key = (span.role, span.group), (span.role, span.group, span.model)
            pause_s = span.start_s - ended_s.get(key, span.start_s)
            last = models.get(process, span.model)
            yield span, is_cold(span.model, pause_s=pause_s, has_alternated=last is not span.model)
            ended_s[key], models[process] = span.end_s, span.model
