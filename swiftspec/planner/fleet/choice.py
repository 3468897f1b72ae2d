"""Choice of a fleet: the kind of replica that serves a load within its limits on the fewest devices.

1. Options that may lead at some load, by closed forms that start from the simulations of one request (`shortlist`).
2. All of them simulated at a few loads per device, each until it misses the limits (`sizing`); the best one that can be
   steered also under a control.
3. The number of replicas by bisection, each number with the very share of the load that a replica then has; only kinds
   that may need the fewest devices go on.
4. The best one once more, with more requests. If it fails it gets another replica, or another kind has its turn.
   At the same time, the best other policies at the same load; and pools: targets that share a draft, of the best kind
   with a draft on devices of its own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.under_load import LoadPrediction
from swiftspec.devices import ClusterSpec
from swiftspec.planner.fleet.load_simulations import LoadSimulations, ShareServer
from swiftspec.planner.fleet.replica import Kind
from swiftspec.planner.fleet.result import described_kinds
from swiftspec.planner.fleet.shortlist import Estimate, load_grid, shortlist, with_fewer_rows
from swiftspec.planner.fleet.sizing import Bracket, Sizing
from swiftspec.planner.load import Load, load_of
from swiftspec.planner.load_choice import LoadDecision, described_load
from swiftspec.planner.search.backends import Workers
from swiftspec.planner.search.decision import OutOfReachError
from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.evaluation import Budget
from swiftspec.planner.search.option import Key, Option
from swiftspec.planner.search.searches import Searches
from swiftspec.planner.under_load.load_curves import LoadCurve, LoadCurves, Means
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.planner.under_load.schedule import draft_schedule
from swiftspec.policies import Layout
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.routing import Replicas

DEFAULT_PERCENTILE = 95.0  # of the requests, which keep their limits

# Output tokens of the requests that a simulation counts: at every load, for the number of replicas, and for the choice.
_SWEEP_TOKENS, _SIZING_TOKENS, _FINAL_TOKENS = 4_000, 7_000, 10_000
_EXPLAINED = 4  # prompts whose simulation describes an option
_MOST_FAILURES = 4  # of choices with more requests
_MOST_ALTERNATIVES = 2
_CONTROL = "goodput"
_TARGETS = (2, 4)  # per draft group


def sharing_candidate(brackets: Sequence[Bracket]) -> Bracket | None:
    """The kind whose drafts are worth sharing: of those with a draft on devices of its own, the one on the fewest."""
    own = [
        one
        for one in brackets
        if one.kind.option.policy.layout is Layout.DISAGGREGATED
        and one.kind.option.policy.target_groups == 1
        and one.high is not None
    ]
    return min(own, key=lambda one: (one.high not in one.exact, one.devices), default=None)


def pools_of(own: Bracket, *, most_devices: int) -> Iterator[Bracket]:
    """Pools of 2 and 4 targets for one draft group, as far as there are devices, and the number of each to try.

    A draft that is shared answers no sooner: pools need at least as many targets as replicas with their own drafts.
    """
    assert own.high is not None, "a sharing candidate"
    for num_targets in _TARGETS:
        pool = replace(own.kind, num_targets=num_targets, num_drafts=1)
        if most := most_devices // pool.num_devices:
            high = min(most, math.ceil(own.high / num_targets))
            yield Bracket(kind=pool, low=min(own.low // num_targets, high - 1), high=high, doubtful=high - 1)


def saves(pool: Bracket, own: Bracket) -> bool:
    """Whether the number of pools to try next would need fewer devices than own drafts."""
    count = pool.next_count
    return count is not None and count * pool.kind.num_devices < own.devices


class _Incumbent(NamedTuple):
    """A kind that was simulated at length, the number of its replicas, and other policies with their predictions."""

    kind: Bracket
    num_replicas: int
    others: Sequence[Kind]
    predictions: Mapping[str, LoadPrediction]


class FleetSearch:
    """Search of a fleet for a load.

    load: with limits; without a percentile it is 95. found: of one request at a time.
    """

    def __init__(self, load: Load, most_devices: int, found: Searches) -> None:
        percentile = load.goal.percentile or DEFAULT_PERCENTILE
        self._load = load = replace(
            load,
            options=load.options.on(found.profile.device),
            goal=load.goal.model_copy(update={"percentile": percentile}),
        )
        self._rate = load_of(load.workload)  # of a closed loop its clients
        self._most_devices = most_devices
        self._found, self._simulations, self._policy = found, found.simulations, found.policy
        self._means = Means.of(load.workload)
        self._pools: list[Bracket] = []
        self._curves: dict[Key, LoadCurve] = {}
        predictor = Predictor(found.profile, found.simulations.trace, serving=load.serving, seed=found.simulations.seed)
        self._server = ShareServer(load=load, predictor=predictor)
        workers = Workers(self._server, found.num_jobs)
        self._simulated = LoadSimulations(workers=workers, simulations=found.simulations)
        self._sizing = Sizing(
            self._simulated,
            rate=self._rate,
            output_tokens=self._means.output_tokens,
            batch=self._batch,
            room=self._room,
        )

    def decide(self) -> LoadDecision:
        """The choice. OutOfReachError if no candidate may be chosen, or none fits on the devices."""
        estimates = self._estimates()
        loads = load_grid(estimates, least=self._rate / self._most_devices, tpot_s=self._tpot_s)
        listed = shortlist(estimates, loads, tpot_s=self._tpot_s)
        sample = self._simulations.sample(_EXPLAINED, self._simulations.longest, explain=True)
        kinds = self._described([one.option for one in listed], sample)
        if not any(kind.may_win for kind in kinds):
            raise OutOfReachError("no candidate that was simulated under the workload meets the goal's other limits")
        brackets = self._sizing.sweep(kinds, loads, tokens=_SWEEP_TOKENS, what="replicas under load")
        if (steered := self._controlled(brackets)) is not None:
            brackets.append(steered)
        return self._decision(self._enough(brackets) or self._highest_goodput(brackets), brackets)

    @property
    def _tpot_s(self) -> float | None:
        limits = [each.tpot_s for each in self._load.goal.classes if each.tpot_s is not None]
        return min(limits, default=None)

    def _estimates(self) -> list[Estimate]:
        closed = ClosedForms(self._found.profile, self._found.simulations.trace)
        serving = self._load.serving
        curves = LoadCurves(
            profile=self._found.profile,
            closed=closed,
            means=self._means,
            max_running=self._load.options.max_running,
            most_rows=serving.limits.step_tokens if serving else BatchLimits().max_rows,
            clients=self._load.workload.is_closed,
        )
        found = []
        for ranked in with_fewer_rows(self._found.ranking(), self._found.options, closed):
            tokens = None
            if self._found.memory is not None:
                tokens = self._found.memory.cached_tokens(ranked.option, context=self._load.workload.longest_request)
            curve = curves.curve(ranked, cached_tokens=tokens)
            self._curves[ranked.option.key] = curve
            found.append(Estimate(ranked, curve))
        return found

    def _described(self, options: Sequence[Option], budget: Budget) -> list[Kind]:
        """Options with their predictions for a single request."""
        outcomes = self._simulations.run(options, budget, "replicas", ahead=8 * len(options))
        return [
            Kind(
                option=outcome.option,
                candidate=self._found.decision.candidate(outcome),
                may_win=self._policy in (None, outcome.option.policy.name) and self._simulations.keeps(outcome),
            )
            for outcome in outcomes
        ]

    def _batch(self, kind: Kind, rate: float) -> float:
        """Requests at once on a replica, all targets of a pool together."""
        return kind.num_targets * self._curves[kind.option.key].batch(rate / kind.num_targets)

    def _room(self, kind: Kind) -> int | None:
        """Cache blocks of a target that there is memory for, those of the longest request at least; None if unknown."""
        if self._found.memory is None:
            return None
        return self._found.memory.num_blocks(
            kind.option,
            longest=self._load.workload.longest_request,
            targets_per_draft=kind.num_targets / (kind.num_drafts or kind.num_targets),
        )

    def _most_replicas(self, kind: Kind) -> int:
        """As many as there are devices for, every group within a node."""
        most = self._most_devices // kind.num_devices
        if self._found.memory is None:
            return most
        cluster = ClusterSpec(device=self._found.memory.device, num_devices=self._most_devices)
        while most and cluster.place(sorted(kind.group_sizes * most, reverse=True)) is None:
            most -= 1
        return most

    def _enough(self, brackets: Sequence[Bracket]) -> _Incumbent | None:
        """The kind that serves the load within its limits on the fewest devices, of equals the faster one; or None."""
        for _ in range(_MOST_FAILURES):
            self._sizing.settle(brackets, tokens=_SIZING_TOKENS, may_win=self._may_win)
            able = [(one, one.high) for one in brackets if one.high in one.exact and self._may_win(one)]
            if not able:
                return None
            best, count = min(able, key=lambda pair: (pair[0].devices, -pair[0].exact[pair[1]].user_tokens_per_s))
            found = self._incumbent(best, count, brackets)
            if best.exact[count].keeps:
                return found
        return None

    def _may_win(self, one: Bracket) -> bool:
        """Whether a kind may be chosen, and there are devices for as many of it as are thought to be enough."""
        return one.kind.may_win and one.high is not None and one.high <= self._most_replicas(one.kind)

    def _highest_goodput(self, brackets: Sequence[Bracket]) -> _Incumbent:
        """The kind that serves most requests within their limits with as many replicas as there are devices for."""
        able = [(one, count) for one in brackets if one.kind.may_win and (count := self._most_replicas(one.kind))]
        if not able:
            raise OutOfReachError(f"fleet is {self._most_devices}; no replica has so few devices")
        self._sizing.measure(able, tokens=_SIZING_TOKENS, what="all devices")
        best, count = max(able, key=lambda pair: _goodput(*pair))
        return self._incumbent(best, count, brackets)

    def _incumbent(self, best: Bracket, count: int, brackets: Sequence[Bracket]) -> _Incumbent:
        """A longer simulation of a kind that all prompts have described; beside it other policies, and draft pools."""
        kind, *others = self._described([best.kind.option, *_other_policies(best, brackets)], self._found.widest.whole)
        best.kind = replace(best.kind, candidate=kind.candidate)
        task = self._sizing.task(best.kind, self._rate / count, _FINAL_TOKENS)
        beside = [task._replace(candidate=one.candidate, num_blocks=self._room(one), control="") for one in others]
        pools = self._new_pools(brackets)
        tasks = [self._sizing.task(pool.kind, self._rate / most, _SIZING_TOKENS) for pool, most in pools]
        simulations = iter(self._simulated.run([task, *beside, *tasks], "the choice"))
        found = next(simulations)
        best.note(count, found.point)
        predictions = {best.kind.option.policy.name: found.prediction}
        predictions |= {one.option.policy.name: next(simulations).prediction for one in others}
        for pool, most in pools:
            pool.note(most, next(simulations).point)
        return _Incumbent(best, count, others, predictions)

    def _new_pools(self, brackets: Sequence[Bracket]) -> list[tuple[Bracket, int]]:
        """Draft pools, once there is a kind whose drafts are worth sharing, and how many of each to try."""
        own = sharing_candidate(brackets)
        if own is None or self._pools:
            return []
        self._pools = list(pools_of(own, most_devices=self._most_devices))
        return [(pool, count) for pool in self._pools if (count := pool.next_count) is not None]

    def _controlled(self, brackets: Sequence[Bracket]) -> Bracket | None:
        """The best kind that drafts and can be steered, under the control that follows goodput; None without any.

        Other engines have no such control.

        The numbers of replicas to try are those of the same kind without a control.
        """
        able = [
            one
            for one in brackets
            if one.kind.option.policy.elastic and one.kind.option.policy.serial_forwards and one.high is not None
        ]
        if not able or self._load.serving is not None:
            return None
        best = min(able, key=lambda one: (one.devices, -one.kind.tokens_per_s))
        return Bracket(kind=replace(best.kind, control=_CONTROL), high=best.high, doubtful=best.doubtful)

    def _decision(self, incumbent: _Incumbent, brackets: Sequence[Bracket]) -> LoadDecision:
        best, count, others, predictions = incumbent
        self._settle_pools(brackets)
        task = self._sizing.task(best.kind, self._rate / count, _FINAL_TOKENS)
        workload = self._server.share(task.rate, task.num_requests)
        share = replace(self._load, workload=workload, path=None, most_requests=len(workload.requests))
        alone = max(predictions.values(), key=lambda found: found.tokens_per_s)
        return LoadDecision(
            option=best.kind.option,
            chosen=best.kind.candidate.model_copy(update={"control": best.kind.control or None}),
            alternatives=tuple(kind.candidate for kind in others),
            under_load=described_load(
                share, predictions, alone, seed=self._simulations.seed, num_candidates=1 + len(others)
            ),
            fleet=self._fleet(best, count, brackets),
        )

    def _fleet(self, best: Bracket, count: int, brackets: Sequence[Bracket]) -> Fleet:
        """The section of a plan whose replicas are `count` of the best kind."""
        load, point = self._load, best.exact[count]
        others = sorted(
            (one for one in brackets if one is not best), key=lambda one: (one.devices, -one.kind.tokens_per_s)
        )
        return Fleet(
            workload=load.basis,
            arrivals=str(load.workload.arrivals),
            rate=self._rate,
            num_requests=len(load.workload.requests),
            prompt_tokens=self._means.prompt_tokens,
            output_tokens=self._means.output_tokens,
            most_devices=self._most_devices,
            router=Replicas().router,
            goal=load.goal,
            options=load.options,
            price_per_hour=self._simulations.goal.price_per_hour,
            kinds=described_kinds([best, *others, *self._pools], self._room),
            num_replicas=count,
            is_enough=point.keeps,
            point=point,
            draft_lengths=tuple(
                draft_schedule(
                    self._found.profile,
                    self._simulations.trace,
                    num_devices=best.kind.num_devices,
                    max_running=load.options.max_running,
                    serving=load.serving,
                )
            ),
            num_simulations=self._simulated.num_simulations,
        )

    def _settle_pools(self, brackets: Sequence[Bracket]) -> None:
        """More of the draft pools that missed the limits, while they need fewer devices than own drafts."""
        own = sharing_candidate(brackets)
        while own is not None:
            counts = [(pool, pool.next_count) for pool in self._pools if saves(pool, own)]
            if not counts:
                return
            self._sizing.measure(
                [(pool, count) for pool, count in counts if count], tokens=_SIZING_TOKENS, what="draft pools"
            )


def _other_policies(best: Bracket, brackets: Sequence[Bracket]) -> list[Option]:
    """The best option of every other policy that fits on a replica's devices."""
    of_policy: dict[str, Bracket] = {}
    for one in sorted(brackets, key=lambda one: (one.devices, -one.kind.tokens_per_s)):
        name = one.kind.option.policy.name
        if one.kind.num_devices <= best.kind.num_devices and name != best.kind.option.policy.name:
            of_policy.setdefault(name, one)
    return [one.kind.option for one in list(of_policy.values())[:_MOST_ALTERNATIVES]]


def _goodput(one: Bracket, count: int) -> tuple[float, float]:
    """Output tokens per second of requests within their limits, of all replicas; then those of all requests."""
    point = one.exact[count]
    return count * point.tokens_per_s * point.attained, count * point.tokens_per_s
