"""Simulation of a plan under load, as `swiftspec simulate --workload` runs it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from swiftspec.artifacts.gathering import usual_gather_s
from swiftspec.artifacts.load_metrics import LoadMetrics, ServedRecord, load_metrics
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.timeline import Timeline
from swiftspec.artifacts.workload import Workload
from swiftspec.policies.effects import Role
from swiftspec.progress import Stages, silent
from swiftspec.stages.inputs import read_plan

if TYPE_CHECKING:
    from swiftspec.simulator.serving import Job

__all__ = ["LoadOptions", "SimulatedLoad", "simulate_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Limits of the scheduler.

    Parameters
    ----------
    max_running : int
        Requests that share the devices at once.
    max_waiting : int or None
        Requests in the queue; more are refused. Unlimited if None.
    num_blocks : int or None
        Blocks of 16 tokens in the target's cache. Unlimited if None.
    prefill_rows : int
        Prompt tokens of one step.
    gather_s : float or None
        How long verifications wait for those of other requests, if the draft has devices of its own. If None,
        `artifacts.gathering`'s.
    replay : bool or None
        Whether requests replay rounds that were recorded of the first 200, instead of growing trees. If None, where
        there are more than 1000 requests. Policies whose rounds cannot be recorded are always simulated in full.
    """

    max_running: int = 8
    max_waiting: int | None = None
    num_blocks: int | None = None
    prefill_rows: int = 128
    gather_s: float | None = None
    replay: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """Result of a simulation under load.

    Attributes
    ----------
    metrics : LoadMetrics
    records : tuple of ServedRecord
        Completed requests, in order of arrival.
    timelines : tuple of Timeline
        Of the same requests.
    mean_batch : float
        Requests per step of the target, by time.
    busy_fraction : float
        Share of the time in which the target computed.
    num_replayed : int
        Requests that replayed recorded rounds, counted again if they gave way.
    """

    metrics: LoadMetrics
    records: tuple[ServedRecord, ...]
    timelines: tuple[Timeline, ...]
    mean_batch: float
    busy_fraction: float
    num_replayed: int = 0


_MOST_FULL = 1000  # requests that are simulated in full by default
_NUM_RECORDED = 200
_ANY = LoadOptions()


def simulate_load(
    planned: Planned | Path | str,
    workload: Workload | Path | str,
    *,
    policy: str | None = None,
    options: LoadOptions = _ANY,
    seed: int = 0,
    stages: Stages = silent,
) -> SimulatedLoad:
    """Serve a workload by a plan in simulated time.

    Texts are the plan's traced ones, chosen at random for requests that name no prompt, and cut or continued to the
    workload's lengths: load and acceptance are independent.

    Parameters
    ----------
    planned : Planned, or path
    workload : Workload, or path
    policy : str, optional
        One of the plan's alternatives; its choice if not given.
    options : LoadOptions
        Limits of the scheduler.
    seed : int
        The same seed gives the same result.
    stages : Stages
        Receives progress reports.

    Raises
    ------
    ValueError
        If the plan has no such policy, a prompt is not in its trace, or a request does not fit into the cache.
    """
    planned = read_plan(planned)
    workload = workload if isinstance(workload, Workload) else Workload.load(Path(workload))
    from swiftspec.artifacts.basis import candidate_of
    from swiftspec.scheduler.admission import AdmissionLimits
    from swiftspec.scheduler.batching import BatchLimits
    from swiftspec.simulator.serving import Serving

    candidate = candidate_of(planned.plan, policy)
    built = candidate.build()
    gather_s = usual_gather_s(candidate) if options.gather_s is None else options.gather_s
    serving = Serving(
        planned.profile.latencies,
        planned.trace,
        built,
        degrees={role: len(group) for role, group in candidate.groups.items()},
        ranks=candidate.ranks,
        admission=AdmissionLimits(
            max_running=options.max_running,
            max_waiting=options.max_waiting,
            num_blocks=options.num_blocks,
            tree_rows=built.target_rows,
        ),
        batch=BatchLimits(prefill_rows=options.prefill_rows, gather_s=gather_s),
    )
    jobs = _jobs(planned, workload, seed)
    is_replay = len(jobs) > _MOST_FULL if options.replay is None else options.replay
    with stages("simulate") as progress:
        run = serving.run(
            jobs,
            num_clients=workload.arrivals.num_clients if workload.is_closed else None,
            seed=seed,
            num_recorded=_NUM_RECORDED if is_replay else 0,
            done=lambda count: progress(count, len(jobs), "requests"),
        )
    served = [request for request in run.requests if request.ended_s is not None]
    limits = {each.name: each for each in workload.classes}
    records = []
    for request in served:
        of_class = limits[workload.requests[request.number].class_name]
        assert request.begun_s is not None
        records.append(
            ServedRecord.of(
                request.timeline,
                begun_s=request.begun_s,
                num_preemptions=request.num_preemptions,
                class_name=of_class.name,
                ttft_limit_s=of_class.ttft_s,
                tpot_limit_s=of_class.tpot_s,
            )
        )
    seconds = np.array([step.end_s - step.start_s for step in run.steps if step.role is Role.TARGET])
    batches = np.array([step.num_requests for step in run.steps if step.role is Role.TARGET])
    return SimulatedLoad(
        metrics=load_metrics(records, refused=run.num_refused),
        records=tuple(records),
        timelines=tuple(request.timeline for request in served),
        mean_batch=float(np.average(batches, weights=seconds)),
        busy_fraction=float(seconds.sum() / run.end_s / built.target_groups),
        num_replayed=run.num_replayed,
    )


def _jobs(planned: Planned, workload: Workload, seed: int) -> list["Job"]:
    """A job for every request; prompts that it does not name are drawn."""
    from swiftspec.simulator.serving import Job

    indices = {prompt.prompt_id: index for index, prompt in enumerate(planned.trace.prompts)}
    drawn = np.random.default_rng([seed, 0]).integers(len(indices), size=len(workload.requests)).tolist()
    jobs = []
    for number, request in enumerate(workload.requests):
        if request.prompt_id is not None and request.prompt_id not in indices:
            raise ValueError(
                f"requests[{number}].prompt_id is {request.prompt_id!r}; the plan's trace has no such prompt"
            )
        jobs.append(
            Job(
                arrival_s=request.arrival_s,
                prompt_index=drawn[number] if request.prompt_id is None else indices[request.prompt_id],
                prompt_tokens=None if request.prompt_id is not None else request.prompt_tokens,
                output_tokens=request.output_tokens,
            )
        )
    return jobs
