"""Measurement of a plan under load: a workload's requests on the engine, in an open or a closed loop."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, Queue
from threading import Event

import numpy as np

from swiftspec.artifacts.load_metrics import MeasuredLoad, ServedRecord, load_metrics
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.prompts import Prompt, stretched
from swiftspec.artifacts.trace import SamplingParams
from swiftspec.artifacts.workload import Workload
from swiftspec.engine.checks import ContextLimit, check_devices
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent
from swiftspec.engine.tasks import encoded_prompts
from swiftspec.loadtest.sending import send_in_turn
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import Request
from swiftspec.progress import Progress
from swiftspec.scheduler.controls.control import Control
from swiftspec.simulator.setup import Setup

_WARM_UP_TOKENS = 16
_LOOK_EVERY_S = 0.1  # whether Ctrl-C was pressed


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
    options: LoadOptions,
    control: Control | None,
    progress: Progress,
) -> Iterator["LoadEngine"]:
    """An engine of one of a plan's candidates, or of replicas of it, warmed up, for workloads of these requests.

    ValueError: if the plan is for another machine, or a request could never fit into the cache.
    """
    admission, batch = Setup.of(candidate).limits(options)
    replicas = options.replicas
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
        engine.run(workload, warm, [0.0] * len(warm))
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
        arrivals_s = [request.arrival_s for request in workload.requests]
        ended, late_s = self.run(workload, requests, arrivals_s, at_once=workload.arrivals.num_clients, done=progress)
        served = sorted(ended.items())
        records = [
            ServedRecord.of(
                one.timeline,
                workload.class_of(workload.requests[number]),
                begun_s=one.begun_s,
                num_preemptions=one.preemptions,
            )
            for number, one in served
        ]
        return MeasuredLoad(
            metrics=load_metrics(records),
            records=tuple(records),
            timelines=tuple(one.timeline for _, one in served),
            prompt_tokens=tuple(len(requests[number].prompt) for number, _ in served),
            late_s=late_s,
        )

    def run(
        self,
        workload: Workload,
        requests: Sequence[Request],
        arrivals_s: Sequence[float],
        *,
        at_once: int | None = None,
        done: Progress = lambda *_: None,
    ) -> tuple[dict[int, Generation], float]:
        """Outputs of requests by their number, and the longest delay of a submission; clients are the workload's."""
        policy = self.candidate.build()
        # Not a SimpleQueue, see `swiftspec.engine.running.Events`.
        ends: Queue[tuple[int, Generation | Exception]] = Queue()
        ended: dict[int, Generation] = {}

        def submit(number: int) -> None:
            def deliver(event: RequestEvent) -> None:
                if not isinstance(event, tuple):
                    ends.put((number, event))

            asked = workload.requests[number]
            tpot_s = workload.class_of(asked).tpot_s
            task = Task(prompt_id=str(number), request=requests[number], client=asked.client, tpot_s=tpot_s)
            sampler = Sampler(**self.sampling.of_prompt(number))
            self.launcher.submit(policy, task, sampler=sampler, deliver=deliver)

        def take(within_s: float) -> int:
            with suppress(Empty):
                number, end = ends.get(timeout=min(within_s, _LOOK_EVERY_S))
                if isinstance(end, Exception):
                    raise end
                ended[number] = end
                done(len(ended), len(requests), self.candidate.policy)
            if self.interrupted.is_set():
                raise KeyboardInterrupt
            return len(ended)

        return ended, send_in_turn(arrivals_s, at_once, submit, take)
