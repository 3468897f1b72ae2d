"""Curves of a sweep: every policy simulated, and perhaps measured, under the same workloads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from swiftspec.api.inputs import Prompts
from swiftspec.artifacts.distributions import Arrivals, Process
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned, candidate_of
from swiftspec.artifacts.workload import Workload
from swiftspec.files.document import Origin
from swiftspec.models.spec import is_model_directory, model_directory
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.progress import Progress
from swiftspec.studies.latency_law.coverage import ExpertCoverage
from swiftspec.studies.latency_law.curves import best_lengths, comparisons, curve_of
from swiftspec.studies.latency_law.document import Curve, CurveKind, Sweep, SweptPolicy
from swiftspec.studies.latency_law.experts import expert_counts
from swiftspec.studies.latency_law.runs import Run, Runner, ServerRunner, SimulatedRunner, engine_runner
from swiftspec.workload import with_arrivals

NUM_RATES = 8
_LEAST_SHARE = 0.25  # of the requests, at the lowest rates


class Measuring(NamedTuple):
    """A measurement: on an engine of this machine, or on a server if there is an address.

    prompts: texts, as in `validate_load`, at most `limit` of them. plain_url: another server, of plain decoding.
    """

    prompts: Prompts
    limit: int | None = None
    url: str | None = None
    plain_url: str | None = None
    api_key: str = ""


def coverage_of(planned: Planned | None) -> ExpertCoverage | None:
    """Of the plan's target, if its directory is here and it is sparse."""
    if planned is None or not is_model_directory(planned.plan.target.model):
        return None
    counts = expert_counts(model_directory(planned.plan.target.model))
    return None if counts is None else ExpertCoverage(experts=counts[0], active=counts[1])


def lengthened(planned: Planned, policy: str | None, num_draft_tokens: Sequence[int]) -> list[Candidate]:
    """Plain decoding if the plan has it, then the policy, with each number of draft tokens if any are given."""
    chosen = candidate_of(planned.plan, policy)
    variants = [_with_length(planned, chosen, number) for number in num_draft_tokens] or [chosen]
    plain = planned.plan.candidates.get(Autoregressive.name)
    return variants if plain is None or plain in variants else [plain, *variants]


def _with_length(planned: Planned, candidate: Candidate, number: int) -> Candidate:
    """The candidate with another number of draft tokens. ValueError if it drafts no chain."""
    if "num_draft_tokens" not in candidate.shape:
        able = [each.policy for each in planned.plan.candidates.values() if "num_draft_tokens" in each.shape]
        raise ValueError(
            f"num_draft_tokens is {number}; {candidate.policy} drafts no chain, expected a policy among "
            f"{', '.join(able) or 'none of this plan'}"
        )
    # Its costs are those of the planned number; a control gets them of this one.
    changed = candidate.model_copy(update={"shape": {**candidate.shape, "num_draft_tokens": number}, "costs": None})
    changed.build()
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """Everything that is the same for all policies."""

    asked: Workload
    options: LoadOptions
    coverage: ExpertCoverage | None
    measuring: Measuring | None
    seed: int
    num_jobs: int

    def policies(self, planned: Planned, candidates: Sequence[Candidate], progress: Progress) -> Iterator[SweptPolicy]:
        """Candidates of a plan: measured if asked for, and simulated under the same workloads."""
        ticks = _Ticks(progress, len(candidates) * (1 if self.measuring is None else len(CurveKind)))
        for candidate in candidates:
            ticks.what = candidate.describe()
            length = candidate.shape.get("num_draft_tokens")
            runs = self._runs_of(planned, candidate, len(candidates) == 1, ticks)
            rows = candidate.build().target_rows
            yield SweptPolicy(
                policy=candidate.policy,
                candidate=candidate.describe(),
                num_draft_tokens=length if isinstance(length, int) else None,
                rows=rows,
                curves={kind: self._curve(runs[kind], rows) for kind in CurveKind if kind in runs},
            )

    def servers(self, num_draft_tokens: Sequence[int], progress: Progress) -> Iterator[SweptPolicy]:
        """Servers without a plan: that of plain decoding first, if there is one."""
        assert self.measuring is not None
        named = (Autoregressive.name, self.measuring.plain_url, ()), ("server", self.measuring.url, num_draft_tokens)
        urls = [(name, url, lengths) for name, url, lengths in named if url is not None]
        ticks = _Ticks(progress, len(urls))
        for name, url, lengths in urls:
            ticks.what = url
            served = self._served(self._server(url), ticks)
            rows = 1 + sum(lengths)
            yield SweptPolicy(
                policy=name,
                candidate=url,
                num_draft_tokens=sum(lengths) or None,
                rows=rows,
                curves={CurveKind.MEASURED: self._curve([run for _, run in served], rows)},
            )

    def _runs_of(
        self, planned: Planned, candidate: Candidate, is_only: bool, ticks: "_Ticks"
    ) -> dict[CurveKind, list[Run]]:
        with self._measurer(planned, candidate, is_only, ticks) as runner:
            if runner is None:
                served = self._served(self._simulator(planned, candidate), ticks)
                return {CurveKind.PREDICTED: [run for _, run in served]}
            served = self._served(runner, ticks)
        workloads, measured = [workload for workload, _ in served], [run for _, run in served]
        runs = {CurveKind.MEASURED: measured}
        runs[CurveKind.PREDICTED] = ticks.counted(self._simulator(planned, candidate).run(workloads))
        if (again := _retimed(planned, candidate, measured)) is not None:
            runs[CurveKind.RETIMED] = ticks.counted(self._simulator(again, candidate).run(workloads))
        return runs

    def _served(self, runner: Runner, ticks: "_Ticks") -> list[tuple[Workload, Run]]:
        """The closed loops, then Poisson arrivals at shares of their throughput."""
        clients = (1, self.options.max_running)
        closed = [self._under(Arrivals(process=Process.CLOSED, num_clients=number)) for number in clients]
        first = ticks.counted(runner.run(closed))
        most, count = first[1].point.rate, len(self.asked.requests)
        shares = [number / (NUM_RATES + 1) for number in range(1, NUM_RATES + 1)]
        open_loops = [
            self._under(
                Arrivals(process=Process.POISSON, rate=share * most),
                num_requests=round(count * max(share / shares[-1], _LEAST_SHARE)),
            )
            for share in shares
        ]
        return list(zip([*closed, *open_loops], [*first, *ticks.counted(runner.run(open_loops))], strict=True))

    def _under(self, arrivals: Arrivals, *, num_requests: int | None = None) -> Workload:
        """The requests in one pattern of arrivals, which is only stretched: rates then differ in nothing else."""
        return with_arrivals(self.asked, arrivals, seed=self.seed, num_requests=num_requests)

    def _simulator(self, planned: Planned, candidate: Candidate) -> Runner:
        return SimulatedRunner(
            candidate=candidate,
            profile=planned.profile,
            trace=planned.trace,
            options=self.options,
            seed=self.seed,
            num_jobs=self.num_jobs,
        )

    @contextmanager
    def _measurer(
        self, planned: Planned, candidate: Candidate, is_only: bool, ticks: "_Ticks"
    ) -> Iterator[Runner | None]:
        """What measures a candidate, if anything does."""
        measuring = self.measuring
        if measuring is None:
            yield None
        elif measuring.url is not None:
            is_plain = candidate.policy == Autoregressive.name and not is_only
            url = measuring.plain_url if is_plain else measuring.url
            yield None if url is None else self._server(url)
        else:
            with engine_runner(
                planned,
                candidate,
                self.asked,
                measuring.prompts,
                options=self.options,
                seed=self.seed,
                limit=measuring.limit,
                progress=ticks.nothing_done,
            ) as runner:
                yield runner

    def _server(self, url: str) -> Runner:
        assert self.measuring is not None
        return ServerRunner(
            url=url,
            prompts=self.measuring.prompts,
            api_key=self.measuring.api_key,
            seed=self.seed,
            limit=self.measuring.limit,
        )

    def _curve(self, runs: Sequence[Run], rows: int) -> Curve:
        rounds = [run.rounds for run in runs[:2]]
        return curve_of([run.point for run in runs], rounds, coverage=self.coverage, rows=rows)


class _Ticks:
    """Runs that are done, of those of all curves."""

    def __init__(self, progress: Progress, num_curves: int) -> None:
        self._progress = progress
        self._done, self._total = 0, num_curves * (NUM_RATES + 2)
        self.what = ""

    def counted(self, runs: Iterator[Run]) -> list[Run]:
        """All runs; each is reported when it is done."""
        found = []
        for run in runs:
            found.append(run)
            self._done += 1
            self._progress(self._done, self._total, self.what)
        return found

    def nothing_done(self, _done: int, _total: int, what: str) -> None:
        """Report something that is no run, such as the start of processes."""
        self._progress(self._done, self._total, what)


def _retimed(planned: Planned, candidate: Candidate, runs: Sequence[Run]) -> Planned | None:
    """The plan with the step latencies during all runs; None if too few steps are known."""
    from swiftspec.validation.load_steps import shared_steps, step_factors

    steps = [step for run in runs for step in shared_steps(run.timelines, run.prompt_tokens)]
    factors = step_factors(planned.profile, candidate, steps)
    return replace(planned, profile=planned.profile.retimed(factors)) if factors else None


def document(sweeper: Sweeper, planned: Planned | None, swept: Sequence[SweptPolicy]) -> Sweep:
    """The sweep as a document, with comparisons."""
    asked, coverage = sweeper.asked, sweeper.coverage
    plain = next((each for each in swept if each.policy == Autoregressive.name), None)
    others = [each for each in swept if each is not plain]
    lengths = [each for each in others if each.num_draft_tokens is not None]
    return Sweep(
        origin=Origin.here(),
        plan_sha256=None if planned is None else sha256(planned.plan.to_bytes()).hexdigest(),
        workload_sha256=sha256(asked.to_bytes()).hexdigest(),
        prompt_tokens=str(asked.prompt_tokens),
        output_tokens=str(asked.output_tokens),
        num_requests=len(asked.requests),
        max_running=sweeper.options.max_running,
        experts=None if coverage is None else coverage.experts,
        active_experts=None if coverage is None else coverage.active,
        url=None if sweeper.measuring is None else sweeper.measuring.url,
        policies=tuple(swept),
        comparisons=() if plain is None else tuple(comparisons(plain, others, coverage)),
        best_lengths=() if plain is None or len(lengths) < 2 else tuple(best_lengths(plain, lengths, coverage)),
    )
