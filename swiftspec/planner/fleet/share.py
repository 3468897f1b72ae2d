"""The share of a load that one replica serves, as a workload of its own.

A router that gives requests to N replicas in turn gives each of them every Nth one. Their shares are taken one after
the other, as one longer load of a single replica: bursts keep their length, and there are as many requests as before.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from swiftspec.artifacts.distributions import Arrivals, Process
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.workload import RequestClass, Workload, WorkloadRequest
from swiftspec.planner.load import Load

__all__ = ["planned_workload", "replica_share"]


def replica_share(
    workload: Workload,
    num_replicas: int,
    *,
    most_requests: int | None = None,
    rate: float | None = None,
    classes: Sequence[RequestClass] | None = None,
) -> Workload:
    """What comes to one of N replicas under round robin.

    Parameters
    ----------
    workload : Workload
        Of an open process.
    num_replicas : int
    most_requests : int, optional
        At most the first N requests; all of the workload's if not given.
    rate : float, optional
        Requests per second of the share; the workload's over the number of replicas if not given. Times are stretched.
    classes : sequence of RequestClass, optional
        With other limits than the workload's.

    Raises
    ------
    ValueError
        If there are more replicas than requests, the workload has no rate, or its requests wait for others.
    """
    if workload.rate is None:
        why = "a closed loop" if workload.is_closed else "a workload whose requests all arrive at 0"
        raise ValueError(f"workload is {workload.arrivals}; a fleet cannot divide {why}: expected a rate")
    workload.check_arrivals("a fleet")
    if not 1 <= num_replicas <= len(workload.requests):
        raise ValueError(f"num_replicas is {num_replicas}; the workload has {len(workload.requests)} requests")
    rate = rate or workload.rate / num_replicas
    stretch = workload.rate / num_replicas / rate
    numbers = chain.from_iterable(range(first, len(workload.requests), num_replicas) for first in range(num_replicas))
    requests: list[WorkloadRequest] = []
    for number in numbers:
        if len(requests) == most_requests:
            break
        request = workload.requests[number]
        start_s = (number % num_replicas) * workload.duration_s
        requests.append(request.model_copy(update={"arrival_s": stretch * (start_s + request.arrival_s)}))
    return workload.model_copy(
        update={
            "arrivals": _thinned(workload.arrivals, num_replicas, rate),
            "trace": None if workload.trace is None else workload.trace.model_copy(update={"rate": rate}),
            "classes": workload.classes if classes is None else tuple(classes),
            "requests": tuple(requests),
        }
    )


def _thinned(arrivals: Arrivals, num_replicas: int, rate: float) -> Arrivals:
    """The process of every Nth arrival, without stages: sums of N gaps, more even than the gaps themselves."""
    if arrivals.process is Process.POISSON and num_replicas > 1:
        return Arrivals(process=Process.GAMMA, rate=rate, shape=float(num_replicas))
    if arrivals.process is Process.GAMMA:
        assert arrivals.shape is not None, "gamma has a shape"
        return arrivals.model_copy(update={"rate": rate, "shape": arrivals.shape * num_replicas, "stages": ()})
    return arrivals if arrivals.process is Process.REPLAY else arrivals.model_copy(update={"rate": rate, "stages": ()})


def planned_workload(load: Load | None, plan: Plan) -> tuple[Workload | None, Path | None]:
    """The workload that a plan is saved with, and its file if it is one: a replica's share if there is a fleet."""
    if load is None:
        return None, None
    if plan.fleet is None or plan.under_load is None:
        return load.workload, load.path
    share = replica_share(
        load.workload,
        plan.fleet.num_replicas,
        most_requests=plan.under_load.num_requests,
        classes=plan.fleet.goal.classes,
    )
    return share, None
