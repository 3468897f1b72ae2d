"""Measures a Profile: steps on every device group a plan may name, alone and beside a busy peer, and host costs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from swiftspec.documents import ModelRef, Origin
from swiftspec.engine.launcher import Engine
from swiftspec.engine.sampling import Sampler
from swiftspec.latency import Latency, Provenance
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.easyspec import EasySpec
from swiftspec.policies.effects import Role
from swiftspec.policies.mirror import Mirror
from swiftspec.policies.serial import SerialTree
from swiftspec.policies.swiftspec import SwiftSpec
from swiftspec.profile import HostPoint, Profile, StepPoint
from swiftspec.profiler.programs import AlternatingSweep, OverlappedSweep
from swiftspec.specs import ModelSpec, model_directory
from swiftspec.timeline import COMPUTING, Phase, Timeline

__all__ = ["host_points", "measure_profile", "new_sweep", "step_points"]

TARGET_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
DRAFT_ROWS = (1, 2, 4, 8, 12, 24)
HALVES_ROWS = (2, 4, 6, 8, 12)
CONTEXTS = (16, 64, 256, 640)
# Shared machines have slow spells of seconds: every bench is measured in several passes, each on new processes.
PASSES = 3
REPEATS = 3
SWEEPS = 2  # of REPEATS each, per pass and context; a sweep starts with a prefill
HOST_SHAPES: dict[Layout, tuple[Policy, ...]] = {
    Layout.DISAGGREGATED: (
        SwiftSpec(verify_rows=4, expand_rows=1),
        SwiftSpec(verify_rows=8, expand_rows=4),
        SwiftSpec(verify_rows=16, expand_rows=8),
        Mirror(num_draft_tokens=4, guesses=1),
    ),
    Layout.COLOCATED: (
        SerialTree(verify_rows=4, expand_rows=1, expansions=4),
        SerialTree(verify_rows=8, expand_rows=4, expansions=4),
        SerialTree(verify_rows=16, expand_rows=8, expansions=4),
        EasySpec(verify_rows=8, top_k=4, depth=4),
    ),
}
HOST_TOKENS = 48
LEAST_SAMPLES = 8
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """An engine to measure on, and the group sizes its spans speak for."""

    layout: Layout
    groups: dict[Role, tuple[int, ...]]

    def __str__(self) -> str:
        return f"{self.layout} {'+'.join(str(len(cores)) for cores in self.groups.values())}"


def measure_profile(*, target: ModelRef, draft: ModelRef, device: str, num_devices: int, progress: Progress) -> Profile:
    """Measure every group size and split of `num_devices` devices.

    Raises
    ------
    ValueError
        If the device is unknown, a model cannot be loaded, or there are fewer devices than asked for.
    """
    if device != "cpu":
        raise ValueError(f"device is {device!r}; this version measures 'cpu'")
    spec = ModelSpec.from_directory(model_directory(target.model))
    contexts = [context for context in CONTEXTS if context + max(TARGET_ROWS) <= spec.max_position]
    benches = list(_benches(num_devices))
    sweeps: list[list[Timeline]] = [[] for _ in benches]
    rounds: list[Timeline] = []
    per_engine = len(contexts) + 1
    total = PASSES * len(benches) * per_engine
    stages = product(range(1, PASSES + 1), zip(benches, sweeps, strict=True))
    for done, (number, (bench, timelines)) in zip(range(0, total, per_engine), stages, strict=True):
        what = f"pass {number} of {PASSES}, {bench}"
        progress(done, total, f"{what}: loading")
        with Engine(
            target=target, draft=draft, groups=bench.groups, layout=bench.layout, max_context=spec.max_position
        ) as engine:
            measured = _Measurement(engine, bench, spec)
            for index, context in enumerate(contexts):
                progress(done + index, total, f"{what}: steps at context {context}")
                timelines += measured.sweep(context)
            progress(done + len(contexts), total, f"{what}: host costs")
            rounds += measured.policies()
    progress(total, total, "done")
    return Profile(
        origin=Origin.here(),
        device=device,
        num_devices=num_devices,
        target=target,
        draft=draft,
        steps=tuple(
            step
            for bench, timelines in zip(benches, sweeps, strict=True)
            for step in step_points(timelines, bench.groups, bench.layout)
        ),
        host=tuple(host_points(rounds)),
    )


def _benches(num_devices: int) -> Iterator[_Bench]:
    for count in range(1, num_devices + 1):
        yield _Bench(layout=Layout.COLOCATED, groups={Role.TARGET: tuple(range(count))})
    for count in range(1, num_devices):
        groups = {Role.TARGET: tuple(range(count)), Role.DRAFT: tuple(range(count, num_devices))}
        yield _Bench(layout=Layout.DISAGGREGATED, groups=groups)


class _Measurement:
    """Requests of random tokens on one engine: latency does not depend on what they say."""

    def __init__(self, engine: Engine, bench: _Bench, spec: ModelSpec) -> None:
        self._engine = engine
        self._bench = bench
        self._spec = spec
        self._rng = np.random.default_rng(0)

    def sweep(self, context: int) -> list[Timeline]:
        timelines = []
        for repeats in (1, *([REPEATS] * SWEEPS)):
            policy = new_sweep(self._bench.layout, repeats=repeats)
            timelines.append(self._run(policy, context, max_new_tokens=1))
        return timelines[1:]  # the first time at a context compiles its shapes

    def policies(self) -> list[Timeline]:
        """Real rounds, for what they cost beside the forwards."""
        shapes = HOST_SHAPES[self._bench.layout]
        return [self._run(shape, CONTEXTS[1], max_new_tokens=HOST_TOKENS) for shape in shapes]

    def _run(self, policy: Policy, context: int, *, max_new_tokens: int) -> Timeline:
        prompt = tuple(self._rng.integers(1, self._spec.vocab_size, context).tolist())
        request = Request(prompt=prompt, max_new_tokens=max_new_tokens)
        generation = self._engine.generate(policy, request, request_id=str(context), sampler=Sampler())
        if generation.interrupted:
            raise KeyboardInterrupt
        return generation.timeline


def new_sweep(layout: Layout, *, repeats: int) -> Policy:
    """A measuring program over every row count of every kind of forward."""
    sweep = OverlappedSweep if layout is Layout.DISAGGREGATED else AlternatingSweep
    return sweep(
        target_rows_grid=TARGET_ROWS, draft_rows_grid=DRAFT_ROWS, halves_rows_grid=HALVES_ROWS, repeats=repeats
    )


def step_points(
    timelines: Sequence[Timeline], groups: Mapping[Role, tuple[int, ...]], layout: Layout
) -> Iterator[StepPoint]:
    """Forwards of the timelines, by phase, rows and context (the request's id)."""
    samples: dict[tuple[Role, Phase, int, int], list[float]] = defaultdict(list)
    for timeline in timelines:
        for span in timeline.spans:
            if span.phase in COMPUTING:
                context = 0 if span.phase is Phase.PREFILL else int(timeline.request)
                samples[span.model, span.phase, span.rows, context].append(span.end_s - span.start_s)
    peer_busy = layout is Layout.DISAGGREGATED
    for (role, phase, rows, context), seconds in samples.items():
        latency = Latency.of_samples(seconds, Provenance.MEASURED)
        yield StepPoint(
            role=role,
            phase=phase,
            degree=len(groups[role if peer_busy else Role.TARGET]),
            peer_busy=peer_busy,
            rows=rows,
            context=context,
            quantiles_s=latency.quantiles_s,
            num_samples=len(seconds),
            provenance=Provenance.MEASURED,
        )


def host_points(timelines: Sequence[Timeline]) -> Iterator[HostPoint]:
    """What passes around an effect: the gap before its span, and the span itself where it is no forward.

    For `wait` it is the hop: from the peer's send to the message in hand, where the receiver was already waiting.
    """
    samples: dict[tuple[Phase, int], list[float]] = defaultdict(list)
    for timeline in timelines:
        for role in Role:
            for before, span in pairwise(timeline.of(role)):
                if span.phase in COMPUTING and span.phase is not Phase.PREFILL:
                    samples[span.phase, span.rows].append(span.start_s - before.end_s)
                elif span.phase in (Phase.SEND, Phase.COMPACT, Phase.COMMIT):
                    samples[span.phase, 1].append(span.end_s - before.end_s)
        samples[Phase.WAIT, 1] += _hops(timeline)
    for (phase, rows), seconds in samples.items():
        if len(seconds) >= LEAST_SAMPLES:
            latency = Latency.of_samples(seconds, Provenance.MEASURED)
            yield HostPoint(
                phase=phase,
                rows=rows,
                quantiles_s=latency.quantiles_s,
                num_samples=len(seconds),
                provenance=Provenance.MEASURED,
            )


def _hops(timeline: Timeline) -> Iterator[float]:
    for receiver, sender in ((Role.TARGET, Role.DRAFT), (Role.DRAFT, Role.TARGET)):
        sends = [span for span in timeline.of(sender) if span.phase is Phase.SEND]
        waits = [span for span in timeline.of(receiver) if span.phase is Phase.WAIT]
        for send, wait in zip(sends, waits, strict=False):
            if wait.start_s < send.start_s:
                yield max(wait.end_s - send.end_s, 1e-9)
