"""A replica of a fleet: an option, alone or as several targets that share drafts, and its share of a load.

A router that gives requests to N replicas in turn gives each of them every Nth one. Their shares are taken one after
the other, as one longer load of a single replica: bursts keep their length, and there are as many requests as before.
Of a closed loop, each replica has its share of the clients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from swiftspec.artifacts.distributions import Arrivals, Process
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import RequestClass, Workload, WorkloadRequest
from swiftspec.planner.load import Load, check_divisible, load_of
from swiftspec.planner.search.option import Option, Split
from swiftspec.scheduler.routing import Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of replica.

    option: of one target and its draft.
    candidate: the same, with its prediction for a single request.
    num_drafts: draft groups that the targets share; None without a pool.
    control: name of the control that decides how much is drafted, passed to simulations; none if empty.
    may_win: whether it may be chosen; others are there to be compared with.
    """

    option: Option
    candidate: Candidate
    num_targets: int = 1
    num_drafts: int | None = None
    control: str = ""
    may_win: bool = True

    @property
    def cell(self) -> tuple[str, Split, str]:
        """What all shapes of a policy on a split have in common."""
        return self.option.policy.name, self.option.split_key, self.control

    @property
    def num_devices(self) -> int:
        """Devices of one, all targets and drafts of a pool together."""
        return sum(self.group_sizes)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Devices of every group that a forward runs on."""
        sizes = [len(devices) for devices in self.option.groups.values()]
        copies = self.option.policy.target_groups
        targets = [sizes[0] // copies] * (copies * self.num_targets)
        return (*targets, *(sizes[1:] * (self.num_drafts or self.num_targets)))

    @property
    def replicas(self) -> Replicas:
        return Replicas(num_targets=self.num_targets, num_drafts=self.num_drafts)

    @property
    def tokens_per_s(self) -> float:
        """Speed of a single request."""
        return self.candidate.prediction.metrics.figures.tokens_per_s


def replica_share(
    workload: Workload,
    num_replicas: int,
    *,
    most_requests: int | None = None,
    rate: float | None = None,
    classes: Sequence[RequestClass] | None = None,
) -> Workload:
    """What comes to one of N replicas under round robin.

    most_requests: at most the first N requests; all of the workload's if not given. rate: requests per second of the
    share; the workload's over the number of replicas if not given. Times are stretched. Of a closed loop its clients.
    classes: with other limits than the workload's.

    ValueError: if there are more replicas than requests, the workload has no rate, or its requests wait for others.
    """
    if workload.is_closed:
        clients = math.ceil(rate or load_of(workload) / num_replicas)
        return workload.model_copy(
            update={
                "arrivals": workload.arrivals.model_copy(update={"num_clients": clients}),
                "classes": workload.classes if classes is None else tuple(classes),
                "requests": workload.requests[:most_requests],
            }
        )
    check_divisible(workload)
    assert workload.rate is not None, "check_divisible"
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


def with_workload(planned: Planned, load: Load | None) -> Planned:
    """A plan with the workload that it is saved with, and its file if it is one: a replica's share of a fleet's."""
    plan = planned.plan
    if load is None:
        return planned
    if plan.fleet is None or plan.under_load is None:
        return replace(planned, workload=load.workload, workload_path=load.path)
    share = replica_share(
        load.workload,
        plan.fleet.num_replicas,
        most_requests=plan.under_load.num_requests,
        classes=plan.fleet.goal.classes,
    )
    return replace(planned, workload=share)
