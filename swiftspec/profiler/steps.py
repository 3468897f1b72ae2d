"""Measurement of a Profile: steps on every device group of possible plans, with idle and busy peer, and host costs.

Groups that several ranks divide are measured as shards, and composed (see `tensor_parallel`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

import numpy as np
import torch

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.routes import ExpertsTouched, TouchedPoint
from swiftspec.devices.local import num_devices_here
from swiftspec.engine.model.cpu.model import pads_prompts
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.models import feature_bytes
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef, Origin
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.layer_parts import Experts
from swiftspec.policies import DraftKind, Layout, Request
from swiftspec.policies.effects import ForwardKind, Role
from swiftspec.profiler.benches import benches_of
from swiftspec.profiler.grids import LONGEST_SHARED, TARGET_ROWS
from swiftspec.profiler.host_costs import arrival_point, feature_hops, host_points
from swiftspec.profiler.passes import MINUTES, Passes
from swiftspec.profiler.programs import verified_rows
from swiftspec.profiler.prompts import prompts_for
from swiftspec.profiler.shared_steps import check_max_sequences, measure_sharing
from swiftspec.progress import Progress
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.sharing import Sharing, SharingPoint, fit_costs
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline
from swiftspec.timing.warm_up import RecentForwards

GPU_LONGEST_SHARED = 2000
_TURNS = 4  # of other tokens, for each prompt and number of rows
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
    minutes: float | None = None,
) -> Profile:
    """Measure every group size and split of `num_devices` cores or GPUs.

    ranks: on a CPU, also compose the forwards of groups divided by this many processes. max_sequences: also measure
    steps that up to this many sequences share. minutes: with slow models, measure less than all to take no longer; the
    device's default if not given.

    ValueError: if the device is unknown, a model cannot be loaded, or there are fewer devices than asked for or than
    ranks.
    """
    check_max_sequences(max_sequences)
    if device not in ("cpu", "cuda"):
        raise FieldError("device", repr(device), "this version measures 'cpu' and 'cuda'")
    kind = draft_facts(draft.model).kind
    benches = list(benches_of("cuda" if device == "cuda" else "cpu", num_devices, ranks, kind=kind))
    shared = [bench for bench in benches if max_sequences > 1 and not bench.silent]
    passes = Passes(target, draft, benches, device=device, progress=progress, num_further=len(shared))
    passes.measure(within_s=60 * (minutes or MINUTES[device]))
    sharing_points: list[SharingPoint] = []
    host_shares: list[float] = []
    longest = LONGEST_SHARED if device == "cpu" else GPU_LONGEST_SHARED
    shared_contexts = [context for context in passes.contexts if context <= longest]
    for bench in shared:
        passes.tell(f"{bench}: steps of up to {max_sequences} sequences")
        with bench.open(
            target=target, draft=draft, max_context=passes.max_context, num_requests=max_sequences
        ) as engine:
            samples = measure_sharing(
                engine,
                bench,
                spec=passes.spec,
                prompt=prompts_for(target, passes.spec),
                max_sequences=max_sequences,
                contexts=shared_contexts,
            )
            sharing_points += samples.points()
            host_shares += samples.host_shares()
    touched = None
    if device == "cpu" and passes.spec.experts is not None:
        prompts = list(map(prompts_for(target, passes.spec), passes.contexts))
        touched = experts_touched(target, passes.spec.experts, prompts, TARGET_ROWS)
    passes.tell("done")
    origin = Origin.here()
    if device == "cuda":  # as the GPUs call themselves
        name = f"{torch.cuda.get_device_name()}, {num_devices_here(device)} of them"
        origin = origin.model_copy(update={"device": name})
    arrival, host = arrival_point(passes.interrupted), list(host_points(passes.rounds))
    num_bytes = feature_bytes(draft, target) if kind is DraftKind.HEAD else 0
    # If ranks divide a group of a bench, only the steps of that group.
    points = [
        (bench, step)
        for bench, timelines in zip(benches, passes.sweeps, strict=True)
        for step in step_points(timelines, bench.groups, bench.layout, ranks=bench.ranks)
        if step.ranks > 1 or not bench.ranks
    ]
    return Profile(
        origin=origin,
        device=device,
        num_devices=num_devices,
        target=target,
        draft=draft,
        steps=(
            *(step for bench, step in points if not bench.ranks),
            *passes.tp_groups.composed([step for bench, step in points if bench.silent]),
        ),
        host=(*host, *([arrival] if arrival else []), *feature_hops(host, feature_bytes=num_bytes)),
        collectives=passes.tp_groups.collectives(),
        checks=tuple(step for bench, step in points if bench.ranks and not bench.silent and not step.cold),
        padded_prompts=(Role.TARGET, Role.DRAFT) if device == "cpu" and pads_prompts() else (),
        sharing=Sharing(
            points=tuple(sharing_points),
            costs=fit_costs(sharing_points),
            host_share=float(np.median(host_shares)) if host_shares else None,
        )
        if shared
        else None,
        warm_up=passes.warm_up,
        feature_bytes=num_bytes,
        experts_touched=touched,
        passes=passes.num_passes if device == "cpu" else None,
    )


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
    recent: dict[tuple[Role, int], RecentForwards] = defaultdict(RecentForwards)  # of every process
    for span in timeline.spans:
        if span.phase in COMPUTING:
            forwards = recent[span.role, span.group]
            yield span, forwards.is_cold(span.model, now_s=span.start_s)
            forwards.note(span.model, now_s=span.end_s)


@torch.inference_mode()
def experts_touched(
    target: ModelRef, experts: Experts, prompts: Sequence[tuple[int, ...]], row_counts: Sequence[int]
) -> ExpertsTouched:
    """Mean experts of a layer that verifications touch after these prompts, for every number of rows.

    A profile's forwards run in an engine's processes, which answer with times only. Time does not depend on the text of
    a dense model; that of a sparse one depends on the experts that its rows need. So the same rows are routed once more
    here, without a clock; the model is loaded into this process meanwhile.
    """
    model = ModelRunner.load(target, max_context=max(map(len, prompts)), tree_slots=max(row_counts))
    counts: dict[int, list[int]] = {rows: [] for rows in sorted(row_counts)}
    for prompt in prompts:
        model.reset(0)
        model.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, prompt),)))
        for rows, found in counts.items():
            for turn in range(_TURNS):
                chain = verified_rows(Request(prompt=prompt, max_new_tokens=1), rows, turn=turn)
                model.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, chain),)))
                routes = model.routes()
                assert routes is not None, "the target has experts"
                found += [len(np.unique(layer)) for layer in routes.numpy()]
                model.keep(0, (), 0)
    return ExpertsTouched(
        num_experts=experts.num_experts,
        num_active=experts.num_active,
        points=tuple(TouchedPoint(rows=rows, experts=mean(found)) for rows, found in counts.items()),
    )
