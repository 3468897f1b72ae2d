"""The quick search, for many placements: closed forms choose what to try; promising options get the simulations.

One scout for each policy and split, its plausible best shape there, shows which splits and policies deserve more; then
come shapes on a policy's best split, and the best of them on other splits. A fit to all of these short simulations (see
`surface`) chooses what is simulated longer, and that chooses what is simulated on the whole trace. All use the same
prompts, picked so that a few are together as hard as the whole trace.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from swiftspec.planner.search.bounds import ClosedForms
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.goals import PER_DEVICE, score_of_speed
from swiftspec.planner.search.option import Key, Option, Split
from swiftspec.planner.search.simulations import HOPEFUL, SAFE, FinalStage, RankedOption, Simulations, by_policy
from swiftspec.planner.search.surface import Surface

__all__ = ["UNTRIED", "quickly_found"]

# Number of prompts, and output tokens of each.
_SCOUTING = (4, 28)
_REFINING = (8, 64)
_REFINING_WEIGHT = (8 * 64) / (4 * 28)
_OTHERS = 3  # prompts for policies that are out of the running, with whole outputs
# A policy is scouted on this many plausible best splits, and on the plausible best for every number of devices.
_SCOUTED_SPLITS = 4
_MOST_CONTENDING = 3  # policies
UNTRIED = "less promising in closed form than the simulated options"


class _Tier(NamedTuple):
    """Simulations spent on a policy whose best so far has at least this share of the leader's score."""

    least: float
    shapes: int  # on its best split
    on_other_splits: int  # how many of these, the best, are also tried there
    refined: int  # options that are simulated longer; twice as many where there are other splits


_TIERS = (_Tier(1.0, 60, 2, 8), _Tier(0.85, 16, 1, 3), _Tier(0.6, 8, 0, 2), _Tier(0.0, 4, 0, 1))
# A policy with at least this share of the leader's score is simulated on the whole trace.
_CONTENDING = 0.93
# Of a policy's options on all splits, those with at least this share of the best one's score are simulated longer.
_KEPT_SPLITS = 0.9
_SHAPES_ON_ALL_SPLITS = 2  # of a policy


def quickly_found(
    simulations: Simulations,
    options: Sequence[Option],
    closed: ClosedForms,
    rejected: Counter[str],
    *,
    policy: str | None,
) -> FinalStage:
    """The best options of every policy; the rest is counted in `rejected`; `policy` is searched as if it led."""
    estimates: dict[Key, float] = {option.key: closed.estimate(option) for option in options}
    ranked = sorted(options, key=lambda option: _plausibility(simulations, option, estimates[option.key]), reverse=True)
    budget = simulations.sample(*_SCOUTING)
    scouts = _scouts(ranked)
    ahead = 3 * len(scouts)
    outcomes = simulations.run(scouts, budget, "splits", ahead=ahead)
    race = _Race(simulations, ranked, estimates, policy, outcomes)
    for what, chosen in (("shapes", race.shapes), ("other splits", race.on_other_splits)):
        shapes = [option for name in race.policies for option in chosen(name)]
        race.add(simulations.run(shapes, budget, what, ahead=2 * len(shapes) + 5 * len(race.policies)))
    for what in ("best of these", "best again"):
        refined = [option for name in race.policies for option in race.unrefined(name)]
        outcomes = simulations.run(refined, simulations.sample(*_REFINING), what, ahead=3 * len(refined))
        race.add(outcomes, weight=_REFINING_WEIGHT)
    if simulations.goal.objective in PER_DEVICE:
        _search_splits(simulations, race)
    tried = simulations.simulated
    rejected.update(f"{option.policy.name}: {UNTRIED}" for option in options if option.key not in tried)
    contending = race.contending
    contenders = [
        option for number, name in enumerate(contending) for option in race.finalists(name, 1 if number else 3)
    ]
    if simulations.goal.objective in PER_DEVICE:  # fewer devices are better, as slow as the limits allow
        hopeful = [option for name in contending for option in race.finalists(name, 3, margin=HOPEFUL)]
        contenders += [option for option in hopeful if option not in contenders]
    if simulations.goal.is_limited:  # if any option meets the limits, these do
        contenders += [option for option in race.nearest(policy) if option not in contenders]
    whole_length = {option.policy.name for option in contenders}
    others = [option for name in race.policies if name not in whole_length for option in race.finalists(name, 1)]
    whole = simulations.sample(len(simulations.trace.prompts), simulations.longest, explain=True)
    sample = simulations.sample(_OTHERS, simulations.longest, explain=True)
    return FinalStage(contenders, whole, others, sample, race.forecast)


def _search_splits(simulations: Simulations, race: "_Race") -> None:
    """Simulate the best shapes of every policy that may win on all of their splits, then the best of these for longer.

    The highest speed per device need not be on all devices, or on a scouted split.
    """
    everywhere = {name: race.everywhere(name) for name in race.contending}
    untried = [option for options in everywhere.values() for option in options if not race.has(option)]
    race.add(simulations.run(untried, simulations.sample(*_SCOUTING), "all splits", ahead=2 * len(untried)))
    good = [option for options in everywhere.values() for option in race.good(options)]
    race.add(
        simulations.run(good, simulations.sample(*_REFINING), "best splits", ahead=2 * len(good)),
        weight=_REFINING_WEIGHT,
    )


def _plausibility(simulations: Simulations, option: Option, speed: float) -> tuple[bool, float]:
    """Sort key, as `Simulations.score` for outcomes."""
    score = score_of_speed(simulations.goal, speed, option.num_devices)
    return simulations.scored(RankedOption(option, tokens_per_s=speed, tpot_s=1 / speed, ttft_s=0.0, score=score))


def _scouts(ranked: Iterable[Option]) -> list[Option]:
    """Each policy's plausible best shape on its plausible best splits, and on one for every number of devices."""
    scouts: list[Option] = []
    for group in by_policy(ranked):
        splits: dict[Split, Option] = {}
        for option in group:
            splits.setdefault(option.split_key, option)
        seen: set[int] = set()
        for rank, option in enumerate(splits.values()):
            if rank < _SCOUTED_SPLITS or option.num_devices not in seen:
                scouts.append(option)
            seen.add(option.num_devices)
    return scouts


class _Race:
    """Outcomes of one budget, by policy, compared with the leader's."""

    def __init__(
        self,
        simulations: Simulations,
        ranked: Iterable[Option],
        estimates: Mapping[Key, float],
        policy: str | None,
        outcomes: Iterable[Outcome],
    ) -> None:
        self._simulations = simulations
        self._estimates = estimates
        self._options = {group[0].policy.name: group for group in by_policy(ranked)}
        self._policy = policy
        self._outcomes: dict[str, dict[Key, Outcome]] = {}
        self._weights: dict[Key, float] = {}
        self._surfaces: dict[str, Surface] = {}
        self._expected: dict[str, list[RankedOption]] = {}
        self.add(outcomes)

    def add(self, outcomes: Iterable[Outcome], *, weight: float = 1.0) -> None:
        """Outcomes of longer simulations replace those of shorter ones."""
        for outcome in outcomes:
            self._outcomes.setdefault(outcome.option.policy.name, {})[outcome.option.key] = outcome
            self._weights[outcome.option.key] = weight
        self._expected.clear()
        self._surfaces = {
            name: Surface(
                list(of.values()), [self._weights[key] for key in of], self._simulations.goal, self._estimates
            )
            for name, of in self._outcomes.items()
        }

    @property
    def policies(self) -> list[str]:
        return list(self._outcomes)

    def best(self, name: str, count: int) -> list[Option]:
        """The best options of a policy by their simulations."""
        ranked = sorted(self._outcomes[name].values(), key=self._simulations.score, reverse=True)
        return [outcome.option for outcome in ranked[:count]]

    def unrefined(self, name: str) -> list[Option]:
        """A policy's best options that still need a longer simulation; one option, once, if the policy is hopeless."""
        tier = self.tier(name)
        best = [ranked.option for ranked in self.expected(name)[: 2 * tier.refined]]
        fresh = [option for option in best if self._weights.get(option.key, 0.0) <= 1]
        return fresh[: tier.refined] if len(fresh) == len(best) or tier.on_other_splits else []

    def finalists(self, name: str, count: int, *, margin: float = SAFE) -> list[Option]:
        """The best of a policy's longest simulations, by the mean of simulated and expected score."""
        longest = max(self._weights[key] for key in self._outcomes[name])
        refined = [outcome for key, outcome in self._outcomes[name].items() if self._weights[key] == longest]
        score = partial(self._middle_score, margin=margin)
        return [outcome.option for outcome in sorted(refined, key=score, reverse=True)[:count]]

    def expected(self, name: str) -> list[RankedOption]:
        """Options of a policy on tried splits, best first, by the fit to their fields and splits; tried or not."""
        if name not in self._expected:
            splits = {outcome.option.split_key for outcome in self._outcomes[name].values()}
            there = [option for option in self._options[name] if option.split_key in splits]
            self._expected[name] = sorted(self._surfaces[name].expected(there), key=self._score, reverse=True)
        return self._expected[name]

    def nearest(self, policy: str | None) -> list[Option]:
        """The option expected to come nearest to the goal's limits; of `policy`, if given."""
        expected = [ranked for name in self.policies if policy in (None, name) for ranked in self.expected(name)]
        return [max(expected, key=lambda ranked: ranked.reach(self._simulations.goal)).option]

    def tier(self, name: str) -> _Tier:
        promise = self.promise(name)
        return next(tier for tier in _TIERS if promise >= tier.least)

    def promise(self, name: str) -> float:
        """Share of the leader's score; 1 for the requested policy. Meeting the constraint ranks above all else."""
        if name == self._policy:
            return 1.0
        scores = {other: self._score(self.expected(other)[0]) for other in self._outcomes}
        (keeps, score), (leader_keeps, leader) = scores[name], max(scores.values())
        return score / leader if keeps == leader_keeps else 0.0

    @property
    def contending(self) -> list[str]:
        """Policies that may win, the most promising first."""
        ordered = sorted(self.policies, key=self.promise, reverse=True)[:_MOST_CONTENDING]
        return [name for name in ordered if self.promise(name) >= _CONTENDING]

    def shapes(self, name: str) -> list[Option]:
        """The plausible best shapes of a policy on its best split."""
        (best,) = self.best(name, 1)
        here = (option for option in self._options[name] if option.split_key == best.split_key)
        return list(islice(here, self.tier(name).shapes))

    def on_other_splits(self, name: str) -> list[Option]:
        """A policy's best shapes on the scouted splits, and on all splits that use every device."""
        expected = dict.fromkeys(ranked.option.policy for ranked in self.expected(name))
        shapes = set(islice(expected, self.tier(name).on_other_splits))
        most = max(option.num_devices for option in self._options[name])
        scouted = {outcome.option.split_key for outcome in self._outcomes[name].values()}
        return [
            option
            for option in self._options[name]
            if option.policy in shapes and (option.num_devices == most or option.split_key in scouted)
        ]

    def everywhere(self, name: str) -> list[Option]:
        """The best shapes of a policy on every split that allows them."""
        shapes = {option.policy for option in self.finalists(name, _SHAPES_ON_ALL_SPLITS)}
        return [option for option in self._options[name] if option.policy in shapes]

    def has(self, option: Option) -> bool:
        """Whether an option was simulated."""
        return option.key in self._weights

    def good(self, options: Sequence[Option]) -> list[Option]:
        """Those of one policy's simulated options that are nearly as good as the best of them."""
        outcomes = [self._outcomes[option.policy.name][option.key] for option in options]
        scores = [self._middle_score(outcome, margin=HOPEFUL) for outcome in outcomes]
        keeping, best = max(scores)
        return [
            option for option, score in zip(options, scores, strict=True) if score >= (keeping, _KEPT_SPLITS * best)
        ]

    def forecast(self, option: Option) -> RankedOption:
        """Expected figures of an option, from all simulations of its policy."""
        (ranked,) = self._surfaces[option.policy.name].expected([option])
        return ranked

    def _middle_score(self, outcome: Outcome, *, margin: float = SAFE) -> tuple[bool, float]:
        expected = self.forecast(outcome.option)
        own = RankedOption.of(outcome, self._simulations.goal)
        middle = own._replace(
            tokens_per_s=math.sqrt(expected.tokens_per_s * own.tokens_per_s),
            tpot_s=math.sqrt(expected.tpot_s * own.tpot_s),
            ttft_s=math.sqrt(expected.ttft_s * own.ttft_s),
            score=math.sqrt(expected.score * own.score),
        )
        return self._simulations.scored(middle, margin=margin)

    def _score(self, ranked: RankedOption) -> tuple[bool, float]:
        return self._simulations.scored(ranked)
