"""Measurement of a plan under load: a workload's requests on the engine, in an open or a closed loop."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, Queue
from threading import Event

import numpy as np

from swiftspec.artifacts.load_metrics import LoadMetrics, ServedRecord, load_metrics
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.prompts import Prompt, stretched
from swiftspec.artifacts.sampling_params import SamplingParams
from swiftspec.artifacts.workload import Workload
from swiftspec.engine.checks import ContextLimit, check_devices
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent
from swiftspec.engine.tasks import encoded_prompts
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import Request
from swiftspec.progress import Progress
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controls.control import Control
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas
from swiftspec.timing.timeline import Timeline

_WARM_UP_TOKENS = 16
_LOOK_EVERY_S = 0.1  # whether Ctrl-C was pressed


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """A workload as it ran.

    records: completed requests, in order of arrival.
    timelines: of the same requests.
    prompt_tokens: length of each one's prompt.
    late_s: longest delay of a submission after its arrival.
    """

    metrics: LoadMetrics
    records: tuple[ServedRecord, ...]
    timelines: tuple[Timeline, ...]
    prompt_tokens: tuple[int, ...]
    late_s: float


def load_requests(plan: Plan, workload: Workload, prompts: Sequence[Prompt], *, seed: int) -> list[Request]:
    """A request for each of the workload's: a prompt drawn from those given, in its length; outputs never end early.

    ValueError if a prompt has no tokens, or a request does not fit into the models' context.
    """
    workload.check_arrivals("a validation")
    encoded = encoded_prompts(prompts, model=plan.target.model)
    policies = [each.build() for each in plan.candidates.values()]
    spec = ModelSpec.from_directory(model_directory(plan.target.model))
    limit = ContextLimit.of_model(spec, policies, model=plan.target.model)
    drawn = np.random.default_rng([seed, 1]).integers(len(encoded), size=len(workload.requests)).tolist()
    requests = []
    for number, (index, asked) in enumerate(zip(drawn, workload.requests, strict=True)):
        limit.check(asked.prompt_tokens, asked.output_tokens, prompt=f"requests[{number}]")
        _, tokens = encoded[index]
        prompt = tuple(stretched(tokens, asked.prompt_tokens))
        requests.append(Request(prompt=prompt, max_new_tokens=asked.output_tokens))
    return requests


@contextmanager
def engine_for_load(
    plan: Plan,
    candidate: Candidate,
    workload: Workload,
    requests: Sequence[Request],
    *,
    admission: AdmissionLimits,
    batch: BatchLimits,
    control: Control | None = None,
    replicas: Replicas = ONE_REPLICA,
    progress: Progress,
) -> Iterator["LoadEngine"]:
    """An engine of one of a plan's candidates, or of replicas of it, warmed up, for workloads of these requests.

    ValueError: if the plan is for another machine, or a request could never fit into the cache.
    """
    check_devices(plan, [candidate], source="plan", replicas=replicas)
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    progress(0, len(requests), f"{candidate.policy}: starting processes")
    with (
        Launcher.for_candidate(
            plan,
            candidate,
            max_context=longest,
            admission=admission,
            batch=batch,
            control=control,
            replicas=replicas,
        ) as launcher,
        interrupts_noted() as interrupted,
    ):
        engine = LoadEngine(launcher=launcher, candidate=candidate, sampling=plan.sampling, interrupted=interrupted)
        warm = [
            replace(request, max_new_tokens=min(_WARM_UP_TOKENS, request.max_new_tokens))
            for request in requests[: admission.max_running * replicas.num_targets]
        ]
        _Run(engine, workload, lambda _: None).open(warm, [0.0] * len(warm))
        yield engine


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEngine:
    """An engine that serves one workload after another. interrupted: set once Ctrl-C was pressed."""

    launcher: Launcher
    candidate: Candidate
    sampling: SamplingParams
    interrupted: Event

    def serve(
        self, workload: Workload, requests: Sequence[Request], *, progress: Progress = lambda *_: None
    ) -> MeasuredLoad:
        """Serve a workload, to its last request. requests: as `load_requests` makes them of it.

        KeyboardInterrupt: if Ctrl-C ended it early. swiftspec.errors.EngineError: if a process of the target died.
        """
        run = _Run(self, workload, lambda done: progress(done, len(requests), self.candidate.policy))
        if workload.is_closed:
            late_s = run.closed(requests, num_clients=workload.arrivals.num_clients or 1)
        else:
            late_s = run.open(requests, [request.arrival_s for request in workload.requests])
        return _measured(workload, requests, run.ended, late_s)


class _Run:
    """Requests submitted to an engine, and their ends, by their numbers."""

    def __init__(self, engine: LoadEngine, workload: Workload, note: Callable[[int], None]) -> None:
        self._engine = engine
        self._asked = workload.requests
        self._limits = {each.name: each for each in workload.classes}
        self._policy = engine.candidate.build()
        self._note = note
        # Not a SimpleQueue, see `swiftspec.engine.running.Events`.
        self._ends: Queue[tuple[int, Generation | Exception]] = Queue()
        self.ended: dict[int, Generation] = {}

    def open(self, requests: Sequence[Request], arrivals_s: Sequence[float]) -> float:
        """Submit each at its time, whatever has become of the others; the longest delay of a submission."""
        start_s, late_s = time.perf_counter(), 0.0
        for number, (request, arrival_s) in enumerate(zip(requests, arrivals_s, strict=True)):
            while (left_s := start_s + arrival_s - time.perf_counter()) > 0:
                self._take(within_s=left_s)
            late_s = max(late_s, -left_s)
            self._submit(number, request)
        while len(self.ended) < len(requests):
            self._take(within_s=_LOOK_EVERY_S)
        return late_s

    def closed(self, requests: Sequence[Request], *, num_clients: int) -> float:
        """Keep `num_clients` requests under way until there are no more."""
        submitted = 0
        while len(self.ended) < len(requests):
            while submitted < min(len(self.ended) + num_clients, len(requests)):
                self._submit(submitted, requests[submitted])
                submitted += 1
            self._take(within_s=_LOOK_EVERY_S)
        return 0.0

    def _submit(self, number: int, request: Request) -> None:
        def deliver(event: RequestEvent) -> None:
            if not isinstance(event, tuple):
                self._ends.put((number, event))

        asked = self._asked[number]
        tpot_s = self._limits[asked.class_name].tpot_s
        task = Task(prompt_id=str(number), request=request, client=asked.client, tpot_s=tpot_s)
        sampler = Sampler(**self._engine.sampling.of_prompt(number))
        self._engine.launcher.submit(self._policy, task, sampler=sampler, deliver=deliver)

    def _take(self, *, within_s: float) -> None:
        """Take the next end, if one comes in time."""
        with suppress(Empty):
            number, end = self._ends.get(timeout=min(within_s, _LOOK_EVERY_S))
            if isinstance(end, Exception):
                raise end
            self.ended[number] = end
            self._note(len(self.ended))
        if self._engine.interrupted.is_set():
            raise KeyboardInterrupt


def _measured(
    workload: Workload, requests: Sequence[Request], served: dict[int, Generation], late_s: float
) -> MeasuredLoad:
    limits = {each.name: each for each in workload.classes}
    numbers = sorted(served)
    records = []
    for number in numbers:
        one, of_class = served[number], limits[workload.requests[number].class_name]
        record = ServedRecord.of(one.timeline, of_class, begun_s=one.begun_s, num_preemptions=one.preemptions)
        records.append(record)
    return MeasuredLoad(
        metrics=load_metrics(records),
        records=tuple(records),
        timelines=tuple(served[number].timeline for number in numbers),
        prompt_tokens=tuple(len(requests[number].prompt) for number in numbers),
        late_s=late_s,
    )
