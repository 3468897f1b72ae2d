"""Prediction of a load on a policy's devices: the one that plans, comparisons, schedules and fleets all ask for.

Rounds of single requests are recorded once, and replayed under the engine's step rule. Where rounds depend on the load,
because the draft has devices of its own, a control steers it or rows of a verification are short, events are simulated.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

import numpy as np

from swiftspec.artifacts.candidate import gathered_forwards
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import (
    RECORDED_ROUNDS,
    CacheUse,
    ServedRecord,
    SimulatedLoad,
    load_metrics,
)
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import Workload
from swiftspec.devices import DEVICES
from swiftspec.engines import engine_named
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.search.option import Option
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.loads import REQUESTS_PER_CLIENT, ArrayRun, closed_loop_workload, requests_of
from swiftspec.planner.under_load.own_engine import CutShortError, OwnEngineRun
from swiftspec.planner.under_load.rounds import Round, rounds_of
from swiftspec.planner.under_load.serving_engine import EnginePrices, ServingEngine
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import BLOCK_TOKENS
from swiftspec.scheduler.controls.named import control_under
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas
from swiftspec.simulator.driver import Simulator, group_degrees, group_ranks
from swiftspec.simulator.latency import LatencyTable
from swiftspec.simulator.load import named_prompts, serve_workload
from swiftspec.simulator.setup import Setup
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase

_PROMPTS, _TOKENS = 16, 96  # whose rounds are recorded, and output tokens of each
_MOST_TOKENS = 30_000  # some 20 s of simulation
_ANY_WAIT_S = 3600.0  # a request's own patience ends it
_Rounds = dict[int, list[Round]]  # by the index of their prompt


class Predictor:
    """Loads on one profile and trace.

    serving: another engine than this package's that serves, under its own limits. given: rounds to replay instead of
    recorded ones.
    """

    def __init__(
        self,
        profile: Profile,
        trace: AcceptanceTrace,
        *,
        serving: ServingEngine | None = None,
        seed: int = 0,
        given: list[Round] | None = None,
    ) -> None:
        self.latencies, self.trace, self.serving = LatencyTable(profile.latencies), trace, serving
        self.seed, self._device, self._given = seed, profile.device, given
        self._recorded: dict[tuple[Policy, int, int, tuple[int, ...]], _Rounds] = {}

    def serve(
        self,
        setup: Setup,
        workload: Workload,
        *,
        goal: Goal,
        options: LoadOptions,
        replicas: Replicas = ONE_REPLICA,
        transfer_s: float | None = None,
        timelines: bool = False,
        done: Callable[[int], None] = lambda _: None,
    ) -> SimulatedLoad:
        """Serve all requests.

        goal: limits of every class of the workload.
        options: limits of the scheduler, of this package's engine.
        transfer_s: as of `Requests`, under an engine that serves.
        timelines: whether requests are to have timelines, which only events have.
        done: called with the number of requests that have ended.

        ValueError: if the target or a request does not fit, a forward is in no table, or the trace lacks a prompt.
        """
        if self.serving is not None:
            return self._under_engine(self.serving, setup, workload, goal, transfer_s)
        if not timelines and not workload.has_turns and _has_rounds(setup, options, replicas):
            with suppress(CutShortError):
                found = self._replayed(setup, workload, goal, options)
                done(len(workload.requests))
                return found
        return serve_workload(
            setup,
            workload,
            latencies=self.latencies,
            trace=self.trace,
            goal=goal,
            options=options,
            seed=self.seed,
            replicas=replicas,
            done=done,
        )

    def closed_loop(
        self, setup: Setup, clients: int, *, prompt_tokens: int, output_tokens: int, num_blocks: int | None = None
    ) -> SimulatedLoad:
        """Clients that each send the next request when one ends. num_blocks: of the cache; unlimited if None."""
        workload = closed_loop_workload(clients, prompt_tokens, output_tokens)
        options = LoadOptions(max_running=clients, num_blocks=num_blocks).on(self._device)
        return self.serve(setup, workload, goal=Goal(classes=workload.classes), options=options)

    def rounds(self, setup: Setup, prompts: Sequence[int] = ()) -> _Rounds:
        """Rounds of simulated requests by the index of their prompt, of a policy whose models share devices.

        They are recorded once; those that are given are of one prompt. prompts: those that are needed; some of the
        trace's, evenly spread, if there are none.
        """
        if self._given is not None:
            return {0: self._given}
        degree, ranks = setup.degrees[Role.TARGET], setup.ranks.get(Role.TARGET, 1)
        key = (setup.policy, degree, ranks, tuple(prompts))
        if key not in self._recorded:
            count = len(self.trace.prompts)
            indices = prompts or np.linspace(0, count - 1, min(count, _PROMPTS)).round().astype(int).tolist()
            run = Simulator(self.latencies.latencies, self.trace).run(
                setup.policy,
                degrees={Role.TARGET: degree},
                ranks={Role.TARGET: ranks},
                prompt_indices=indices,
                seed=self.seed,
                max_new_tokens=None if prompts else _TOKENS,
            )
            whole = (list(rounds_of(timeline))[:-1] for timeline in run.timelines)
            self._recorded[key] = {index: rounds for index, rounds in zip(indices, whole, strict=True) if rounds}
        return self._recorded[key]

    def tokens_per_round(self, setup: Setup) -> float:
        """Mean of recorded rounds, the bonus token included."""
        return fmean(one.tokens for rounds in self.rounds(setup).values() for one in rounds)

    def _under_engine(
        self, serving: ServingEngine, setup: Setup, workload: Workload, goal: Goal, transfer_s: float | None
    ) -> SimulatedLoad:
        """Between a request's first and last token its chunks are taken as equally far apart."""
        if setup.policy.layout is Layout.DISAGGREGATED:
            return self._with_draft_server(serving, setup, workload, goal)
        rounds = [one for of_prompt in self.rounds(setup).values() for one in of_prompt]
        there = serving.on(setup.degrees[Role.TARGET], context=workload.longest_request)
        engine = there.under_load(there.recorded_chains(rounds))
        run = simulate(requests_of(workload, transfer_s=transfer_s), engine, seed=self.seed)
        tokens = fmean(one.tokens for one in rounds)
        chunks = [max(1, round((count - 1) / tokens)) if count > 1 else 0 for count in run.output_tokens.tolist()]
        first_s, last_s = run.arrival_s + run.ttft_s, run.arrival_s + run.e2e_s
        commits_s = [
            (first, *np.linspace(first, last, count + 1)[1:].tolist())
            for first, last, count in zip(first_s.tolist(), last_s.tolist(), chunks, strict=True)
        ]
        cache = CacheUse(tokens=engine.cache_tokens, hit_rate=run.hit_rate)
        return _load(run, workload, goal, commits_s, num_rounds=[max(1, count) for count in chunks], cache=cache)

    def _with_draft_server(self, serving: ServingEngine, setup: Setup, workload: Workload, goal: Goal) -> SimulatedLoad:
        """The engine's steps wait for every request that runs: for its drafts, or until it does without.

        Of a long load its first requests, as events take longer than steps that are counted.
        """
        there = serving.on(setup.degrees[Role.TARGET], context=workload.longest_request)
        limits, above = there.limits, there.above
        least = REQUESTS_PER_CLIENT * (workload.arrivals.num_clients or 1)
        workload = workload.beginning(most_tokens=_MOST_TOKENS, least=least)
        served = serve_workload(
            replace(setup, gather_s=_ANY_WAIT_S),
            workload,
            latencies=EnginePrices(there, self.latencies.latencies),
            trace=self.trace,
            goal=goal,
            options=LoadOptions(
                max_running=limits.requests,
                num_blocks=there.room(beside_draft=False) // BLOCK_TOKENS,
                prefill_rows=limits.step_tokens,
            ),
            seed=self.seed,
        )
        limits_of = {each.name: each for each in goal.classes}
        above_s = above.request_s + above.prompt_token_s * fmean(each.prompt_tokens for each in workload.requests)
        records = []
        for record in served.records:
            record = replace(record, commits_s=tuple(above_s + at_s for at_s in record.commits_s))
            records.append(record.judged(limits_of[record.class_name]))
        return replace(served, records=tuple(records), metrics=load_metrics(records))

    def _replayed(self, setup: Setup, workload: Workload, goal: Goal, options: LoadOptions) -> SimulatedLoad:
        """The load by recorded rounds of this package's engine. CutShortError if a round is not whole, or none is."""
        named = named_prompts(workload, self.trace)
        recorded = dict(self.rounds(setup))
        if wanted := sorted({index for index in named if index is not None}):
            recorded |= self.rounds(setup, wanted)
        rounds = [one for of_prompt in recorded.values() for one in of_prompt]
        if not rounds:
            raise CutShortError
        first_of = dict(zip(recorded, np.cumsum([0, *map(len, recorded.values())]).tolist(), strict=False))
        admission, batch = setup.limits(options)
        run = OwnEngineRun(
            requests_of(workload),
            setup.policy,
            self.latencies,
            rounds,
            degrees=group_degrees(setup.degrees, setup.policy),
            ranks=group_ranks(setup.ranks, setup.policy),
            admission=admission,
            batch=batch,
            first_rounds=self._first_rounds(named, first_of),
            clients=[request.client for request in workload.requests],
            seed=self.seed,
        )
        found = run.run()
        num_rounds = [len(commits) - run.begins_with_token for commits in found.commits_s]
        return _load(found, workload, goal, found.commits_s, num_rounds=num_rounds)

    def _first_rounds(self, named: Sequence[int | None], first_of: Mapping[int, int]) -> list[int]:
        """Every request's first round: that of the prompt that it names, or of the recorded ones in turn."""
        firsts = list(first_of.values())
        # Evenly spread, so that few requests have rounds as good as many.
        turns = np.linspace(0, len(firsts), len(named), endpoint=False).astype(int)
        shuffled = np.random.default_rng([self.seed, 0]).permutation(turns).tolist()
        return [
            firsts[turn] if index is None else first_of.get(index, firsts[turn])
            for index, turn in zip(named, shuffled, strict=True)
        ]


def serving_of_plan(
    plan: Plan, candidate: Candidate, *, engine: str, settings: Mapping[str, str]
) -> ServingEngine | None:
    """The engine with a plan's models, for one of its candidates; None for this package's own.

    engine: with its release, as `vllm@0.15`. settings: limits by the engine's own words.

    ValueError: if the plan is of measured devices, the engine or a limit is unknown, or it cannot run the candidate.
    """
    found = engine_named(engine)
    if plan.layout and (objection := found.objection(DeviceLayout.parse(plan.layout))) is not None:
        raise FieldError("engine", engine, f"the plan's layout is {plan.layout}, and {objection}")
    if found.name == SWIFTSPEC.name and not settings:
        return None
    if plan.device not in DEVICES:
        raise FieldError("engine", engine, f"the plan's device is {plan.device}, for which its steps are not known")
    deployment = Deployment.of_plan(plan, engine=engine, settings=settings)
    serving = deployment.serving(*deployment.pair(plan.target.model, plan.draft.model))
    assert serving is not None, "this package's own has no settings"
    policy = candidate.build()
    if policy.layout is Layout.DISAGGREGATED or policy.verifies_trees:
        raise FieldError(
            "policy",
            policy.name,
            f"{serving.engine.full_name} verifies chains, drafted on the target's devices",
        )
    return serving


def setup_of(option: Option, latencies: LatencyTable, *, context: int) -> Setup:
    """An option that has no prediction yet. context: mean tokens of a text."""
    gather_s = 0.0
    if option.policy.layout is Layout.DISAGGREGATED:
        degree, ranks, rows = option.degree(Role.DRAFT), option.num_ranks(Role.DRAFT), option.policy.expand_rows
        key = StepKey(Role.DRAFT, Phase.EXPAND, degree, rows, context, ranks=ranks, peer_busy=True)
        forward = latencies.apart.forward(key)
        gather_s = gathered_forwards(option.policy) * fmean(forward.quantiles_s)
    return Setup(policy=option.policy, degrees=option.degrees, ranks=option.ranks, gather_s=gather_s)


def _has_rounds(setup: Setup, options: LoadOptions, replicas: Replicas) -> bool:
    """Whether rounds of requests alone are those under the load."""
    policy = setup.policy
    return (
        options.replay is not False
        and options.max_waiting is None
        and replicas == ONE_REPLICA
        and policy.layout is not Layout.DISAGGREGATED
        and not (policy.fuzzy or policy.exits or policy.earlier_outputs)
        and control_under(options.control, setup.control) is None
    )


def _load(
    run: ArrayRun,
    workload: Workload,
    goal: Goal,
    commits_s: Sequence[Sequence[float]],
    *,
    num_rounds: Sequence[int],
    cache: CacheUse | None = None,
) -> SimulatedLoad:
    """Records and metrics of a run whose tokens came at these times."""
    limits = {each.name: each for each in goal.classes}
    records = []
    for number, request in enumerate(workload.requests):
        record = ServedRecord(
            arrival_s=float(run.arrival_s[number]),
            queued_s=float(run.queued_s[number]),
            commits_s=tuple(commits_s[number]),
            num_tokens=request.output_tokens,
            num_rounds=num_rounds[number],
            num_preemptions=int(run.preemptions[number]),
        )
        records.append(record.judged(limits[request.class_name]))
    return SimulatedLoad(
        metrics=load_metrics(records),
        records=tuple(records),
        timelines=(),
        mean_batch=run.mean_running,
        busy_fraction=min(1.0, run.busy_s / run.end_s),
        draft_share=run.draft_s / run.end_s,
        verify_share=(run.busy_s - run.draft_s) / run.end_s,
        method=RECORDED_ROUNDS,
        cache=cache,
    )
