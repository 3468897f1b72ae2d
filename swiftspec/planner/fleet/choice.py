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
from dataclasses import dataclass, replace
from typing import NamedTuple

from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.under_load import LoadPrediction, UnderLoad
from swiftspec.devices import ClusterSpec
from swiftspec.planner.fleet.kinds import Kind
from swiftspec.planner.fleet.result import described_fleet, described_load
from swiftspec.planner.fleet.shortlist import Promising, load_grid, shortlisted, with_fewer_rows
from swiftspec.planner.fleet.simulated import Served, Simulated, Simulation
from swiftspec.planner.fleet.sizing import Sized, Sizing
from swiftspec.planner.load import Load
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.bounds import ClosedForms
from swiftspec.planner.search.decision import OutOfReachError, explained
from swiftspec.planner.search.evaluation import Budget
from swiftspec.planner.search.known_errors import KnownErrors
from swiftspec.planner.search.option import Key, Option
from swiftspec.planner.search.simulations import RankedOption, Simulations
from swiftspec.planner.under_load.load_curves import LoadCurve, LoadCurves, Means
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.policies import Layout
from swiftspec.simulator.latency import LatencyTable

__all__ = ["DEFAULT_PERCENTILE", "FleetDecision", "FleetSearch", "pools_of", "saves", "sharing_candidate"]

DEFAULT_PERCENTILE = 95.0  # of the requests, which keep their limits

# Output tokens of the requests that a simulation counts: at every load, for the number of replicas, and for the choice.
_SWEEP_TOKENS, _SIZING_TOKENS, _FINAL_TOKENS = 4_000, 7_000, 10_000
_EXPLAINED = 4  # prompts whose simulation describes an option
_MOST_FAILURES = 4  # of choices with more requests
_MOST_ALTERNATIVES = 2
_CONTROL = "goodput"
_TARGETS = (2, 4)  # per draft group


def sharing_candidate(sized: Sequence[Sized]) -> Sized | None:
    """The kind whose drafts are worth sharing: of those with a draft on devices of its own, the one on the fewest."""
    own = [
        one
        for one in sized
        if one.kind.option.policy.layout is Layout.DISAGGREGATED
        and one.kind.option.policy.target_groups == 1
        and one.high is not None
    ]
    return min(own, key=lambda one: (one.high not in one.exact, one.devices), default=None)


def pools_of(own: Sized, *, most_devices: int) -> Iterator[Sized]:
    """Pools of 2 and 4 targets for one draft group, as far as there are devices, and the number of each to try.

    A draft that is shared answers no sooner: pools need at least as many targets as replicas with their own drafts.
    """
    assert own.high is not None, "a sharing candidate"
    for num_targets in _TARGETS:
        pool = replace(own.kind, num_targets=num_targets, num_drafts=1)
        if most := most_devices // pool.num_devices:
            high = min(most, math.ceil(own.high / num_targets))
            yield Sized(kind=pool, low=min(own.low // num_targets, high - 1), high=high, doubtful=high - 1)


def saves(pool: Sized, own: Sized) -> bool:
    """Whether the number of pools to try next would need fewer devices than own drafts."""
    count = pool.next_count
    return count is not None and count * pool.kind.num_devices < own.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDecision:
    """The replica of a fleet, other policies on no more devices under its load, and the fleet."""

    option: Option
    chosen: Candidate
    alternatives: tuple[Candidate, ...]
    under_load: UnderLoad
    fleet: Fleet


class _Confirmed(NamedTuple):
    """A kind, the number of its replicas with the simulation of one, and other policies with their predictions."""

    kind: Sized
    num_replicas: int
    simulation: Simulation
    others: Sequence[Kind]
    predictions: Mapping[str, LoadPrediction]


class FleetSearch:
    """Search of a fleet for a load.

    Parameters
    ----------
    load : Load
        Of an open process, with limits; without a percentile it is 95.
    most_devices : int
    options : sequence of Option
        All feasible ones.
    ranking : sequence of RankedOption
        The best option of every policy on every split, for one request.
    whole : Budget
        Simulations of one request that describe the plan's candidates.
    policy : str, optional
        Choose this policy.
    """

    def __init__(
        self,
        load: Load,
        *,
        most_devices: int,
        profile: Profile,
        trace: AcceptanceTrace,
        simulations: Simulations,
        options: Sequence[Option],
        ranking: Sequence[RankedOption],
        whole: Budget,
        errors: KnownErrors,
        memory: MemoryModel | None,
        policy: str | None,
        num_jobs: int,
    ) -> None:
        percentile = load.goal.percentile or DEFAULT_PERCENTILE
        self._load = load = replace(
            load,
            options=load.options.on(profile.device),
            goal=load.goal.model_copy(update={"percentile": percentile}),
        )
        assert load.workload.rate is not None, "SearchOptions.check"
        self._rate = load.workload.rate
        self._most_devices = most_devices
        self._profile, self._trace = profile, trace
        self._simulations = simulations
        self._options, self._ranking = options, ranking
        self._whole, self._errors = whole, errors
        self._memory = memory
        self._policy = policy
        self._means = Means.of(load.workload)
        self._pools: list[Sized] = []
        self._curves: dict[Key, LoadCurve] = {}
        served = Served(
            workload=load.workload,
            goal=load.goal,
            options=load.options,
            predictor=Predictor(LatencyTable(profile.latencies), trace, device=profile.device, seed=simulations.seed),
        )
        self._simulated = Simulated(
            serve=served, num_jobs=num_jobs, report=simulations.report, num_done=simulations.num_done
        )
        self._sizing = Sizing(
            self._simulated,
            rate=self._rate,
            output_tokens=self._means.output_tokens,
            batch=self._batch,
            room=self._room,
        )

    def decide(self) -> FleetDecision:
        """The choice. OutOfReachError if no candidate may be chosen, or none fits on the devices."""
        promising = self._promising()
        loads = load_grid(promising, least=self._rate / self._most_devices, tpot_s=self._tpot_s)
        listed = shortlisted(promising, loads, tpot_s=self._tpot_s)
        sample = self._simulations.sample(_EXPLAINED, self._simulations.longest, explain=True)
        kinds = self._described([one.option for one in listed], sample)
        if not any(kind.may_win for kind in kinds):
            raise OutOfReachError("no candidate that was simulated under the workload meets the goal's other limits")
        sized = self._sizing.sweep(kinds, loads, tokens=_SWEEP_TOKENS, what="replicas under load")
        if (steered := self._controlled(sized)) is not None:
            sized.append(steered)
        return self._decision(self._enough(sized) or self._highest_goodput(sized), sized)

    @property
    def _tpot_s(self) -> float | None:
        limits = [each.tpot_s for each in self._load.goal.classes if each.tpot_s is not None]
        return min(limits, default=None)

    def _promising(self) -> list[Promising]:
        closed = ClosedForms(self._profile, self._trace)
        curves = LoadCurves(self._profile, closed, self._means, max_running=self._load.options.max_running)
        found = []
        for ranked in with_fewer_rows(self._ranking, self._options, closed):
            tokens = None
            if self._memory is not None:
                tokens = self._memory.cached_tokens(ranked.option, context=self._load.longest_context)
            curve = curves.curve(ranked, cached_tokens=tokens)
            self._curves[ranked.option.key] = curve
            found.append(Promising(ranked, curve))
        return found

    def _described(self, options: Sequence[Option], budget: Budget) -> list[Kind]:
        """Options with their predictions for a single request."""
        more = explained(self._simulations, options, budget, self._errors, "replicas", ahead=8 * len(options))
        self._simulated.num_done = max(self._simulated.num_done, self._simulations.num_done)
        return [
            Kind(
                option=outcome.option,
                candidate=more.candidate(outcome),
                may_win=self._policy in (None, outcome.option.policy.name) and self._simulations.keeps(outcome),
            )
            for outcome in more.outcomes
        ]

    def _batch(self, kind: Kind, rate: float) -> float:
        """Requests at once on a replica, all targets of a pool together."""
        return kind.num_targets * self._curves[kind.option.key].batch(rate / kind.num_targets)

    def _room(self, kind: Kind) -> int | None:
        return kind.room(self._memory, longest=self._load.longest_context)

    def _most_replicas(self, kind: Kind) -> int:
        """As many as there are devices for, every group within a node."""
        most = self._most_devices // kind.num_devices
        if self._memory is None:
            return most
        cluster = ClusterSpec(device=self._memory.device, num_devices=self._most_devices)
        while most and cluster.place(sorted(kind.group_sizes * most, reverse=True)) is None:
            most -= 1
        return most

    def _enough(self, sized: Sequence[Sized]) -> _Confirmed | None:
        """The kind that serves the load within its limits on the fewest devices, of equals the faster one; or None."""
        for _ in range(_MOST_FAILURES):
            self._sizing.settle(sized, tokens=_SIZING_TOKENS, may_win=self._may_win)
            able = [(one, one.high) for one in sized if one.high in one.exact and self._may_win(one)]
            if not able:
                return None
            best, count = min(able, key=lambda pair: (pair[0].devices, -pair[0].exact[pair[1]].user_tokens_per_s))
            found = self._confirmed(best, count, sized)
            if found.simulation.point.keeps:
                return found
        return None

    def _may_win(self, one: Sized) -> bool:
        """Whether a kind may be chosen, and there are devices for as many of it as are thought to be enough."""
        return one.kind.may_win and one.high is not None and one.high <= self._most_replicas(one.kind)

    def _highest_goodput(self, sized: Sequence[Sized]) -> _Confirmed:
        """The kind that serves most requests within their limits with as many replicas as there are devices for."""
        able = [(one, count) for one in sized if one.kind.may_win and (count := self._most_replicas(one.kind))]
        if not able:
            raise OutOfReachError(f"fleet is {self._most_devices}; no replica has so few devices")
        self._sizing.measure(able, tokens=_SIZING_TOKENS, what="all devices")
        best, count = max(able, key=lambda pair: _goodput(*pair))
        return self._confirmed(best, count, sized)

    def _confirmed(self, best: Sized, count: int, sized: Sequence[Sized]) -> _Confirmed:
        """A longer simulation of a kind that all prompts have described; beside it other policies, and draft pools."""
        kind, *others = self._described([best.kind.option, *_other_policies(best, sized)], self._whole)
        best.kind = replace(best.kind, candidate=kind.candidate)
        task = self._sizing.task(best.kind, self._rate / count, _FINAL_TOKENS)
        beside = [task._replace(candidate=one.candidate, num_blocks=self._room(one), control="") for one in others]
        pools = self._new_pools(sized)
        tasks = [self._sizing.task(pool.kind, self._rate / most, _SIZING_TOKENS) for pool, most in pools]
        simulations = iter(self._simulated.run([task, *beside, *tasks], "the choice"))
        found = next(simulations)
        best.note(count, found.point)
        predictions = {best.kind.option.policy.name: found.prediction}
        predictions |= {one.option.policy.name: next(simulations).prediction for one in others}
        for pool, most in pools:
            pool.note(most, next(simulations).point)
        return _Confirmed(best, count, found, others, predictions)

    def _new_pools(self, sized: Sequence[Sized]) -> list[tuple[Sized, int]]:
        """Draft pools, once there is a kind whose drafts are worth sharing, and how many of each to try."""
        own = sharing_candidate(sized)
        if own is None or self._pools:
            return []
        self._pools = list(pools_of(own, most_devices=self._most_devices))
        return [(pool, count) for pool in self._pools if (count := pool.next_count) is not None]

    def _controlled(self, sized: Sequence[Sized]) -> Sized | None:
        """The best kind that drafts and can be steered, under the control that follows goodput; None without any.

        The numbers of replicas to try are those of the same kind without a control.
        """
        able = [
            one
            for one in sized
            if one.kind.option.policy.elastic and one.kind.option.policy.serial_forwards and one.high is not None
        ]
        if not able:
            return None
        best = min(able, key=lambda one: (one.devices, -one.kind.tokens_per_s))
        return Sized(kind=replace(best.kind, control=_CONTROL), high=best.high, doubtful=best.doubtful)

    def _decision(self, confirmed: _Confirmed, sized: Sequence[Sized]) -> FleetDecision:
        best, count, found, others, predictions = confirmed
        self._settle_pools(sized)
        task = self._sizing.task(best.kind, self._rate / count, _FINAL_TOKENS)
        share = self._simulated.serve.share(task.rate, task.num_requests)
        self._simulations.num_done = self._simulated.num_done
        return FleetDecision(
            option=best.kind.option,
            chosen=best.kind.candidate.model_copy(update={"control": best.kind.control or None}),
            alternatives=tuple(kind.candidate for kind in others),
            under_load=described_load(
                share, self._load, predictions, seed=self._simulations.seed, num_candidates=1 + len(others)
            ),
            fleet=described_fleet(
                self._load,
                best,
                count,
                found.point,
                [one for one in sized if one is not best],
                self._pools,
                most_devices=self._most_devices,
                means=self._means,
                profile=self._profile,
                trace=self._trace,
                price_per_hour=self._simulations.goal.price_per_hour,
                room=self._room,
                num_simulations=self._simulated.num_simulated,
            ),
        )

    def _settle_pools(self, sized: Sequence[Sized]) -> None:
        """More of the draft pools that missed the limits, while they need fewer devices than own drafts."""
        own = sharing_candidate(sized)
        while own is not None:
            counts = [(pool, pool.next_count) for pool in self._pools if saves(pool, own)]
            if not counts:
                return
            self._sizing.measure(
                [(pool, count) for pool, count in counts if count], tokens=_SIZING_TOKENS, what="draft pools"
            )


def _other_policies(best: Sized, sized: Sequence[Sized]) -> list[Option]:
    """The best option of every other policy that fits on a replica's devices."""
    of_policy: dict[str, Sized] = {}
    for one in sorted(sized, key=lambda one: (one.devices, -one.kind.tokens_per_s)):
        name = one.kind.option.policy.name
        if one.kind.num_devices <= best.kind.num_devices and name != best.kind.option.policy.name:
            of_policy.setdefault(name, one)
    return [one.kind.option for one in list(of_policy.values())[:_MOST_ALTERNATIVES]]


def _goodput(one: Sized, count: int) -> tuple[float, float]:
    """Output tokens per second of requests within their limits, of all replicas; then those of all requests."""
    point = one.exact[count]
    return count * point.tokens_per_s * point.attained, count * point.tokens_per_s
