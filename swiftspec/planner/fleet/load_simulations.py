"""Simulations of kinds of replicas at loads, over cores; each depends on its kind, load and seed alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from swiftspec.artifacts.fleet import LoadPoint
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import ServedRecord, SimulatedLoad, load_metrics
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.under_load import LoadPrediction
from swiftspec.artifacts.workload import Workload
from swiftspec.planner.fleet.replica import replica_share
from swiftspec.planner.load import Load, load_of
from swiftspec.planner.search.backends import Workers, uncollected
from swiftspec.planner.search.simulations import Simulations
from swiftspec.planner.under_load.load_curves import Means
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.scheduler.routing import Replicas
from swiftspec.simulator.setup import Setup

_LONGEST_WAIT = 0.5  # share of a request's time that it may wait for admission, where a replica keeps up
_LEAST_SERVED = 0.7  # share of the arriving tokens that it commits meanwhile: a short run's batch grows and shrinks
_LEAST_COUNTED = 0.5  # share of the requests that are counted at least
_EFFORT_OF_DRAFTS = 4.0


class Task(NamedTuple):
    """A candidate, and the load of one replica.

    rate: requests per second, or clients of a closed loop. num_requests: how many are simulated. num_blocks: cache
    blocks of each target.
    """

    candidate: Candidate
    replicas: Replicas
    rate: float
    num_requests: int
    num_blocks: int | None
    control: str = ""

    @property
    def effort(self) -> float:
        """How long it takes, compared with others: a draft on devices of its own has steps of its own."""
        return self.num_requests * _EFFORT_OF_DRAFTS ** (len(self.candidate.groups) - 1)


class Simulation(NamedTuple):
    """A steady state, and the figures of all requests, the first and the last included."""

    point: LoadPoint
    prediction: LoadPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareServer:
    """Server of shares of one load: always the same requests at the same rate, with the same texts."""

    load: Load
    predictor: Predictor

    def share(self, rate: float, num_requests: int) -> Workload:
        """The requests of one replica, at this rate."""
        workload = self.load.workload
        num_replicas = min(max(1, round(load_of(workload) / rate)), len(workload.requests))
        classes = self.load.goal.classes
        return replica_share(workload, num_replicas, rate=rate, most_requests=num_requests, classes=classes)

    @uncollected()
    def __call__(self, task: Task) -> Simulation:
        workload, options = self.load.workload, self.load.options.with_room(task.num_blocks)
        if task.control:
            options = options.model_copy(update={"control": task.control})
        served = self.predictor.serve(
            Setup.of(task.candidate),
            self.share(task.rate, task.num_requests),
            goal=self.load.goal,
            options=options,
            replicas=task.replicas,
        )
        point = steady_point(
            served,
            rate=task.rate,
            output_tokens=Means.of(workload).output_tokens,
            goal=self.load.goal,
            clients=math.ceil(task.rate) if workload.is_closed else None,
        )
        speed = task.candidate.prediction.metrics.figures.tokens_per_s
        described, blocks = task.candidate.describe(), task.num_blocks
        return Simulation(point, LoadPrediction.of(served, candidate=described, tokens_per_s=speed, num_blocks=blocks))


def steady_point(
    served: SimulatedLoad, *, rate: float, output_tokens: float, goal: Goal, clients: int | None = None
) -> LoadPoint:
    """Figures without the requests that came in the first mean end-to-end time, or in the last one of all arrivals.

    rate: requests per second. output_tokens: mean of the whole load. clients: of a closed loop, whose requests come as
    fast as they are served.
    """
    records = _steady(served.records)
    metrics = load_metrics(records)
    attained = sum(record.meets_limits for record in records) / len(records)
    is_admitted = metrics.queued_s.p95 <= _LONGEST_WAIT * metrics.e2el_s.mean
    came, committed = _tokens_per_s(served.records)
    keeps_up = is_admitted and (clients is not None or committed >= _LEAST_SERVED * came)
    sustained = rate * output_tokens if clients is None else committed
    per_token_s = metrics.tpot_s.mean or metrics.e2el_s.mean / output_tokens
    return LoadPoint(
        rate=clients or rate,
        num_requests=len(records),
        attained=attained,
        attainment=metrics.attainment,
        user_tokens_per_s=1 / per_token_s,
        tokens_per_s=sustained if keeps_up and sustained else served.metrics.output_throughput,
        ttft_s=metrics.ttft_s.mean,
        ttft_p95_s=metrics.ttft_s.p95,
        tpot_s=metrics.tpot_s.mean,
        tpot_p95_s=metrics.tpot_s.p95,
        e2e_s=metrics.e2el_s.mean,
        mean_batch=served.mean_batch,
        busy_fraction=min(1.0, served.busy_fraction),
        keeps=keeps_up and goal.accepts(attained),
        keeps_up=keeps_up,
    )


def _tokens_per_s(records: Sequence[ServedRecord]) -> tuple[float, float]:
    """Tokens of the requests that came, and tokens committed: from the first mean end-to-end time to the last arrival.

    Both per second; 0 where there is no such time.
    """
    mean_s = sum(record.e2e_s for record in records) / len(records)
    from_s, until_s = records[0].arrival_s + mean_s, max(record.arrival_s for record in records)
    if until_s <= from_s:
        return 0.0, 0.0
    came = sum(record.num_tokens for record in records if from_s <= record.arrival_s <= until_s)
    committed = sum(
        record.num_tokens / len(record.commits_s) * sum(from_s <= at_s <= until_s for at_s in record.commits_s)
        for record in records
    )
    return came / (until_s - from_s), committed / (until_s - from_s)


def _steady(records: Sequence[ServedRecord]) -> list[ServedRecord]:
    """Those that neither found an idle replica nor were left alone; in short runs half of all, those in the middle."""
    mean_s = sum(record.e2e_s for record in records) / len(records)
    first_s, last_s = records[0].arrival_s, max(record.arrival_s for record in records)
    kept = [record for record in records if first_s + mean_s <= record.arrival_s <= last_s - mean_s]
    if len(kept) >= _LEAST_COUNTED * len(records):
        return kept
    cut = math.floor(len(records) * (1 - _LEAST_COUNTED) / 2)
    return list(records[cut : len(records) - cut])


@dataclass(slots=True, kw_only=True)
class LoadSimulations:
    """Simulations of tasks on several cores. simulations: those of one request, which count these, too."""

    workers: Workers[Task, Simulation]
    simulations: Simulations
    num_simulations: int = 0

    def run(self, tasks: Sequence[Task], what: str, *, ahead: int = 0) -> list[Simulation]:
        """Simulations in the order of the tasks; `ahead` are still to come after these."""
        # The longest ones first: none of them is left to run alone at the end.
        numbers = sorted(range(len(tasks)), key=lambda number: -tasks[number].effort)
        results = self.workers.map(tasks[number] for number in numbers)
        counted = self.simulations.counted(results, what, ahead=len(tasks) + ahead)
        found = dict(zip(numbers, counted, strict=True))
        self.num_simulations += len(tasks)
        return [found[number] for number in range(len(tasks))]
