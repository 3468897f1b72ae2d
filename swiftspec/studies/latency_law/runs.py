"""Runs of a sweep: one workload after another, simulated, on an engine of this machine, or on a server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

import joblib

from swiftspec.api.inputs import Prompts, read_texts
from swiftspec.api.load_testing import send
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import ServedRecord, load_metrics
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import Workload
from swiftspec.planner.search.backends import run_parallel
from swiftspec.policies import Request
from swiftspec.progress import Progress, silent
from swiftspec.scheduler.controls.named import control_under
from swiftspec.studies.latency_law.document import SweepPoint
from swiftspec.studies.latency_law.rounds import RoundTable
from swiftspec.timing.timeline import Timeline

if TYPE_CHECKING:
    from swiftspec.validation.load import LoadEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One workload as it was served: its figures, and its rounds where they are needed and known.

    timelines, prompt_tokens: of requests whose timelines are known, where it was measured.
    """

    point: SweepPoint
    rounds: RoundTable | None = None
    timelines: Sequence[Timeline] = ()
    prompt_tokens: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        workload: Workload,
        records: Sequence[ServedRecord],
        timelines: Sequence[Timeline],
        *,
        prompt_tokens: Sequence[int] = (),
        late_s: float = 0.0,
    ) -> "Run":
        """A run of which everything is known, or everything but timelines."""
        return cls(
            point=_point(workload, records, late_s),
            rounds=RoundTable.of(timelines) if workload.is_closed and len(timelines) == len(records) else None,
            timelines=timelines,
            prompt_tokens=prompt_tokens,
        )


class Runner(Protocol):
    """Serves workloads of the same requests by one candidate."""

    def run(self, workloads: Sequence[Workload], /) -> Iterator[Run]:
        """Serve them one after another."""


def _point(workload: Workload, records: Sequence[ServedRecord], late_s: float) -> SweepPoint:
    if workload.is_closed:
        kept, rate = _busy(records, workload.arrivals.num_clients or 1)
    else:
        assert workload.rate is not None
        kept, rate = records, workload.rate
    return SweepPoint(
        arrivals=workload.arrivals,
        num_requests=len(workload.requests),
        rate=rate,
        metrics=load_metrics(kept),
        late_s=late_s,
    )


def _busy(records: Sequence[ServedRecord], num_clients: int) -> tuple[Sequence[ServedRecord], float]:
    """Requests that ended while every client was busy, and the rate of such clients, by Little's law."""
    last_s = max(record.arrival_s for record in records)
    kept = [record for record in records if record.commits_s[-1] <= last_s] or records
    return kept, num_clients / fmean(record.e2e_s for record in kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRunner:
    """Simulations of a candidate, over cores."""

    candidate: Candidate
    profile: Profile
    trace: AcceptanceTrace
    options: LoadOptions
    seed: int
    num_jobs: int

    def run(self, workloads: Sequence[Workload], /) -> Iterator[Run]:
        """Serve them; as many at once as there are jobs."""
        yield from run_parallel((joblib.delayed(_simulated)(self, workload) for workload in workloads), self.num_jobs)


def _simulated(runner: SimulatedRunner, workload: Workload) -> Run:
    from swiftspec.planner.under_load.predictor import Predictor
    from swiftspec.simulator.setup import Setup

    predictor = Predictor(runner.profile, runner.trace, seed=runner.seed)
    load = predictor.serve(
        Setup.of(runner.candidate),
        workload,
        goal=Goal(classes=workload.classes),
        options=runner.options,
        timelines=True,
    )
    run = Run.of(workload, load.records, load.timelines)
    return Run(point=run.point, rounds=run.rounds)  # timelines would take long to pass between processes


@contextmanager
def engine_runner(
    planned: Planned,
    candidate: Candidate,
    workload: Workload,
    prompts: Prompts,
    *,
    options: LoadOptions,
    seed: int,
    limit: int | None,
    progress: Progress,
) -> Iterator[Runner]:
    """An engine of a candidate, for as long as the context lasts. prompts: texts for the workload's requests."""
    from swiftspec.validation.load import engine_for_load, load_requests

    requests = load_requests(planned.plan, workload, read_texts(prompts, limit), seed=seed)
    with engine_for_load(
        planned.plan,
        candidate,
        workload,
        requests,
        options=options,
        control=control_under(options.control, candidate.control),
        progress=progress,
    ) as engine:
        yield _EngineRunner(engine, requests)


@dataclass(frozen=True, slots=True)
class _EngineRunner:
    engine: "LoadEngine"
    requests: Sequence[Request]

    def run(self, workloads: Sequence[Workload], /) -> Iterator[Run]:
        for workload in workloads:
            requests = self.requests[: len(workload.requests)]
            served = self.engine.serve(workload, requests)
            yield Run.of(
                workload, served.records, served.timelines, prompt_tokens=served.prompt_tokens, late_s=served.late_s
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRunner:
    """A server of OpenAI's API. Its rounds are known if it keeps timelines."""

    url: str
    prompts: Prompts
    api_key: str
    seed: int
    limit: int | None

    def run(self, workloads: Sequence[Workload], /) -> Iterator[Run]:
        """Send them. ValueError if a request fails, or is refused: the others then see less load than was asked for."""
        for workload in workloads:
            _, sent = send(
                self.url,
                workload,
                self.prompts,
                api_key=self.api_key,
                seed=self.seed,
                limit=self.limit,
                stages=silent,
            )
            if sent.failures or sent.metrics.refused:
                why = next(iter(sent.failures), "the server is full")
                raise ValueError(
                    f"--url {self.url}: {sum(sent.failures.values()) + sent.metrics.refused} of "
                    f"{len(workload.requests)} requests failed under {workload.arrivals}: {why}"
                )
            yield Run.of(workload, sent.records, sent.timelines, prompt_tokens=sent.prompt_tokens, late_s=sent.late_s)
