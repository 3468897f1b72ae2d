"""A workload served by a policy on its devices, event by event."""

from collections.abc import Callable, Mapping

import numpy as np

from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import ServedRecord, SimulatedLoad, load_metrics
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import RequestClass, Workload
from swiftspec.policies.effects import Role
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas
from swiftspec.simulator.jobs import Job, ServingRun
from swiftspec.simulator.latency import LatencyTable
from swiftspec.simulator.setup import Setup
from swiftspec.timing.steps import Latencies


def serve_workload(
    setup: Setup,
    workload: Workload,
    *,
    latencies: Latencies | LatencyTable,
    trace: AcceptanceTrace,
    goal: Goal,
    options: LoadOptions,
    seed: int = 0,
    replicas: Replicas = ONE_REPLICA,
    done: Callable[[int], None] = lambda _: None,
) -> SimulatedLoad:
    """Serve all requests, event by event.

    Texts are traced ones, chosen at random for requests that name no prompt. The same seed gives every setup the same
    requests with the same texts.

    latencies: of the plan's profile; a table looks up once what several calls ask for.
    trace: of the plan.
    goal: limits of every class of the workload.
    options: limits of the scheduler of each replica.
    replicas: number of equal machines that share the requests; one if not given.
    done: called with the number of requests that have ended.

    ValueError: if a prompt is not in the trace, a request does not fit into the cache, or the policy cannot run on
    these replicas.
    """
    serving = setup.serving(latencies, trace, options)
    limits = {each.name: each for each in goal.classes}
    jobs = _jobs(workload, limits, trace, seed)
    run = serving.run(
        jobs,
        num_clients=workload.arrivals.num_clients if workload.is_closed else None,
        seed=seed,
        replicas=replicas,
        done=done,
    )
    return _result(run, limits, target_groups=serving.policy.target_groups * replicas.num_targets)


def named_prompts(workload: Workload, trace: AcceptanceTrace) -> list[int | None]:
    """Index of the traced prompt that each request names, if it does. ValueError if there is no such prompt."""
    indices = {prompt.prompt_id: index for index, prompt in enumerate(trace.prompts)}
    for number, request in enumerate(workload.requests):
        if request.prompt_id is not None and request.prompt_id not in indices:
            raise ValueError(
                f"requests[{number}].prompt_id is {request.prompt_id!r}; the plan's trace has no such prompt"
            )
    return [None if request.prompt_id is None else indices[request.prompt_id] for request in workload.requests]


def _jobs(workload: Workload, limits: Mapping[str, RequestClass], trace: AcceptanceTrace, seed: int) -> list[Job]:
    """A job for every request, later turns behind the first; prompts that it does not name are drawn."""
    named = named_prompts(workload, trace)
    drawn = np.random.default_rng([seed, 0]).integers(len(trace.prompts), size=len(named)).tolist()
    jobs: list[Job] = []
    later = dict[str, tuple[Job, float]]()  # of every conversation: the turn that follows, and the time before it
    for number, request in reversed([*enumerate(workload.requests)]):
        index = named[number]
        next_turn, think_time_s = later.pop(request.conversation or "", (None, 0.0))
        job = Job(
            arrival_s=request.arrival_s,
            prompt_index=drawn[number] if index is None else index,
            prompt_tokens=None if request.prompt_id is not None else request.prompt_tokens,
            output_tokens=request.output_tokens,
            client=request.client,
            tpot_s=limits[request.class_name].tpot_s,
            class_name=request.class_name,
            next_turn=next_turn,
            think_time_s=think_time_s,
        )
        if request.conversation is not None and request.think_time_s is not None:
            later[request.conversation] = job, request.think_time_s
        else:
            jobs.append(job)
    return jobs[::-1]


def _result(run: ServingRun, limits: Mapping[str, RequestClass], *, target_groups: int) -> SimulatedLoad:
    """Records and metrics of a run."""
    served = [request for request in run.requests if request.ended_s is not None]
    records = []
    for request in served:
        assert request.begun_s is not None
        of_class, preempted = limits[request.job.class_name], request.num_preemptions
        records.append(ServedRecord.of(request.timeline, of_class, begun_s=request.begun_s, num_preemptions=preempted))
    seconds = np.array([step.end_s - step.start_s for step in run.steps if step.role is Role.TARGET])
    batches = np.array([step.num_requests for step in run.steps if step.role is Role.TARGET])
    of_model = dict.fromkeys(Role, 0.0)
    for step in run.steps:
        of_model[step.model] += (step.end_s - step.start_s) / run.end_s
    return SimulatedLoad(
        metrics=load_metrics(records, refused=run.num_refused),
        records=tuple(records),
        timelines=tuple(request.timeline for request in served),
        mean_batch=float(np.average(batches, weights=seconds)),
        busy_fraction=float(seconds.sum() / run.end_s / target_groups),
        draft_share=of_model[Role.DRAFT],
        verify_share=of_model[Role.TARGET] / target_groups,
        num_repeated=len(served) - len({request.job.prompt_index for request in served}),
    )
