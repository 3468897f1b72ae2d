"""The search: closed forms choose what to try; few options get longer simulations.

On the first rung each policy has its plausible best shape on its plausible splits, which shows the splits and policies
that deserve more; then come shapes on a policy's best split, and the best of them on other splits. A fit to these short
simulations (see `Surface`) chooses what is simulated longer, and that chooses what is simulated on the whole trace. All
use the same prompts, picked so that a few are together as hard as the whole trace.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.plan import Goal
from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.goals import PER_DEVICE, score_of_speed
from swiftspec.planner.search.option import Key, Option, Split
from swiftspec.planner.search.simulations import (
    SURE_MARGIN,
    WIDE_MARGIN,
    LastRung,
    RankedOption,
    Simulations,
    by_policy,
)
from swiftspec.policies import Policy
from swiftspec.policies.base import shape_of


class _Size(NamedTuple):
    """Prompts and output tokens of each stage.

    others: prompts for policies that cannot win, with whole outputs. requests: of the last stage; the prompts of a
    smaller trace are simulated under several seeds.
    """

    short: tuple[int, int]
    longer: tuple[int, int]
    others: int
    requests: int


# Every part of a synthesised text is as easy as the rest. In a real one what is copied comes later, so its beginnings
# do not tell how well a draft that copies does; and its prompts differ.
_SYNTHESISED = _Size(short=(4, 28), longer=(8, 64), others=3, requests=1)
_RECORDED = _Size(short=(8, 48), longer=(24, 96), others=32, requests=96)
_MOST_SEEDS = 3

# On the first rung a policy has this many plausible best splits, and the plausible best for every number of devices.
_FIRST_SPLITS = 4
_MOST_SURVIVORS = 3  # policies
UNTRIED = "less promising in closed form than the simulated options"


class _Tier(NamedTuple):
    """Simulations spent on a policy whose best so far has at least this share of the incumbent's score."""

    least: float
    shapes: int  # on its best split
    on_other_splits: int  # how many of these, the best, are also tried there
    longer: int  # options that are simulated longer; twice as many where there are other splits


_TIERS = (_Tier(1.0, 36, 1, 8), _Tier(0.85, 16, 1, 3), _Tier(0.6, 8, 0, 2), _Tier(0.0, 4, 0, 1))
# A policy with at least this share of the incumbent's score is simulated on the whole trace.
_SURVIVES = 0.93
# Of a policy's options on all splits, those with at least this share of the best one's score are simulated longer.
_KEPT_SPLITS = 0.9
_SHAPES_ON_ALL_SPLITS = 2  # of a policy
_FINALISTS = 3  # options of the best policy that are simulated on the whole trace
_LEAST_OF_TEXT = 24  # shapes of a policy that drafts from the text
_RIDGE = 1.0  # as if every value had been seen once more, without effect


def search_in_stages(
    simulations: Simulations,
    options: Sequence[Option],
    closed: ClosedForms,
    rejected: Counter[str],
    *,
    policy: str | None,
) -> LastRung:
    """The best options of every policy; the rest is counted in `rejected`; `policy` is searched as the incumbent."""
    estimates: dict[Key, float] = {option.key: closed.estimate(option) for option in options}
    ranked = sorted(options, key=lambda option: _plausibility(simulations, option, estimates[option.key]), reverse=True)
    trace, longest = simulations.trace, simulations.longest
    size = _RECORDED if trace.has_text else _SYNTHESISED
    short, longer = simulations.sample(*size.short), simulations.sample(*size.longer)
    weight = (len(longer.prompt_indices) * longer.max_new_tokens) / (len(short.prompt_indices) * short.max_new_tokens)
    first = _first_rung(ranked)
    rungs = _Rungs(simulations, ranked, estimates, policy)
    rungs.add(simulations.run(first, short, "splits", ahead=3 * len(first)))
    for what, chosen in (("shapes", rungs.shapes), ("other splits", rungs.on_other_splits)):
        shapes = [option for name in rungs.policies for option in chosen(name)]
        rungs.add(simulations.run(shapes, short, what, ahead=2 * len(shapes) + 5 * len(rungs.policies)))
    for what in ("best of these", "best again"):
        best = [option for name in rungs.policies for option in rungs.to_simulate_longer(name)]
        rungs.add(simulations.run(best, longer, what, ahead=3 * len(best)), weight=weight)
    per_device = simulations.goal.objective in PER_DEVICE
    if per_device:  # the highest speed per device need not be on all devices, or on a split of the first rung
        everywhere = {name: rungs.everywhere(name) for name in rungs.survivors}
        untried = [option for shapes in everywhere.values() for option in shapes if not rungs.has(option)]
        rungs.add(simulations.run(untried, short, "all splits", ahead=2 * len(untried)))
        good = [option for shapes in everywhere.values() for option in rungs.good(shapes)]
        rungs.add(simulations.run(good, longer, "best splits", ahead=2 * len(good)), weight=weight)
    tried = simulations.simulated
    rejected.update(f"{option.policy.name}: {UNTRIED}" for option in options if option.key not in tried)
    policies = rungs.survivors
    last = [option for rank, name in enumerate(policies) for option in rungs.finalists(name, 1 if rank else _FINALISTS)]
    if per_device:  # fewer devices are better, as slow as the limits allow
        last += [option for name in policies for option in rungs.finalists(name, 3, margin=WIDE_MARGIN)]
    if simulations.goal.is_limited:  # if any option meets the limits, this does
        last.append(rungs.nearest())
    survivors = list({option.key: option for option in last}.values())
    num_seeds = min(_MOST_SEEDS, math.ceil(size.requests / len(trace.prompts)))
    survive = {option.policy.name for option in survivors}
    return LastRung(
        survivors=survivors,
        whole=simulations.sample(len(trace.prompts), longest, num_seeds=num_seeds, explain=True),
        others=[option for name in rungs.policies if name not in survive for option in rungs.finalists(name, 1)],
        sample=simulations.sample(size.others, longest, num_seeds=num_seeds, explain=True),
        expected=rungs.expected_of,
    )


def _plausibility(simulations: Simulations, option: Option, speed: float) -> tuple[bool, float]:
    """Sort key, as `Simulations.score` for outcomes."""
    score = score_of_speed(simulations.goal, speed, option.num_devices)
    return simulations.scored(RankedOption(option, tokens_per_s=speed, tpot_s=1 / speed, ttft_s=0.0, score=score))


def _first_rung(ranked: Iterable[Option]) -> list[Option]:
    """Each policy's plausible best shape on its plausible best splits, and on one for every number of devices."""
    found: list[Option] = []
    for group in by_policy(ranked):
        splits: dict[Split, Option] = {}
        for option in group:
            splits.setdefault(option.split_key, option)
        seen: set[int] = set()
        for rank, option in enumerate(splits.values()):
            if rank < _FIRST_SPLITS or option.num_devices not in seen:
                found.append(option)
            seen.add(option.num_devices)
    return found


class _Rungs:
    """Outcomes of the rungs so far, by policy, compared with the incumbent's: the best one of all."""

    def __init__(
        self, simulations: Simulations, ranked: Iterable[Option], estimates: Mapping[Key, float], policy: str | None
    ) -> None:
        self._simulations = simulations
        self._estimates = estimates
        self._options = {group[0].policy.name: group for group in by_policy(ranked)}
        self._policy = policy
        self._outcomes: dict[str, dict[Key, Outcome]] = {}
        self._weights: dict[Key, float] = {}
        self._surfaces: dict[str, Surface] = {}
        self._expected: dict[str, list[RankedOption]] = {}

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

    def to_simulate_longer(self, name: str) -> list[Option]:
        """A policy's best options that were simulated shortly only; one, once, of a policy far behind the incumbent."""
        tier = self._tier(name)
        best = [ranked.option for ranked in self.expected(name)[: 2 * tier.longer]]
        fresh = [option for option in best if self._weights.get(option.key, 0.0) <= 1]
        return fresh[: tier.longer] if len(fresh) == len(best) or tier.on_other_splits else []

    def finalists(self, name: str, count: int, *, margin: float = SURE_MARGIN) -> list[Option]:
        """The best of a policy's longest simulations, by the mean of simulated and expected score."""
        longest = max(self._weights[key] for key in self._outcomes[name])
        longer = [outcome for key, outcome in self._outcomes[name].items() if self._weights[key] == longest]
        score = partial(self._middle_score, margin=margin)
        return [outcome.option for outcome in sorted(longer, key=score, reverse=True)[:count]]

    def expected(self, name: str) -> list[RankedOption]:
        """Options of a policy on tried splits, best first, by the fit to their fields and splits; tried or not."""
        if name not in self._expected:
            splits = self._splits(name)
            there = [option for option in self._options[name] if option.split_key in splits]
            expected = self._surfaces[name].expected(there)
            self._expected[name] = sorted(expected, key=self._simulations.scored, reverse=True)
        return self._expected[name]

    def nearest(self) -> Option:
        """The option that is expected to come nearest to the goal's limits; of the requested policy, if any."""
        names = [name for name in self.policies if self._policy in (None, name)]
        expected = [ranked for name in names for ranked in self.expected(name)]
        return max(expected, key=lambda ranked: ranked.reach(self._simulations.goal)).option

    @property
    def survivors(self) -> list[str]:
        """Policies that may win, the best first; and plain decoding, which all others are compared with."""
        ordered = sorted(self.policies, key=self._share, reverse=True)[:_MOST_SURVIVORS]
        best = [name for name in ordered if self._share(name) >= _SURVIVES]
        return [*best, *(name for name, of in self._options.items() if of[0].policy.plain and name not in best)]

    def shapes(self, name: str) -> list[Option]:
        """The plausible best shapes of a policy on its best split."""
        best = max(self._outcomes[name].values(), key=self._simulations.score).option
        here = [option for option in self._options[name] if option.split_key == best.split_key]
        count = self._tier(name).shapes
        if best.policy.drafts_from_text:
            # Closed forms know nothing of the text: shapes of all kinds, so that each field's effect is seen.
            count = max(count, _LEAST_OF_TEXT)
            here = [here[index] for index in np.random.default_rng(0).permutation(len(here)).tolist()]
        return here[:count]

    def on_other_splits(self, name: str) -> list[Option]:
        """A policy's best shapes on the splits of the first rung, and on all splits that use every device."""
        expected = dict.fromkeys(ranked.option.policy for ranked in self.expected(name))
        shapes = set(islice(expected, self._tier(name).on_other_splits))
        most = max(option.num_devices for option in self._options[name])
        splits = self._splits(name)
        return [
            option
            for option in self._options[name]
            if option.policy in shapes and (option.num_devices == most or option.split_key in splits)
        ]

    def everywhere(self, name: str) -> list[Option]:
        """The best shapes of a policy on every split that allows them."""
        shapes = {option.policy for option in self.finalists(name, _SHAPES_ON_ALL_SPLITS)}
        return [option for option in self._options[name] if option.policy in shapes]

    def has(self, option: Option) -> bool:
        return option.key in self._weights

    def good(self, options: Sequence[Option]) -> list[Option]:
        """Those of one policy's simulated options that are nearly as good as the best of them."""
        outcomes = [self._outcomes[option.policy.name][option.key] for option in options]
        scores = [self._middle_score(outcome, margin=WIDE_MARGIN) for outcome in outcomes]
        keeping, best = max(scores)
        return [
            option for option, score in zip(options, scores, strict=True) if score >= (keeping, _KEPT_SPLITS * best)
        ]

    def expected_of(self, option: Option) -> RankedOption:
        """Expected figures of an option, from all simulations of its policy."""
        (ranked,) = self._surfaces[option.policy.name].expected([option])
        return ranked

    def _splits(self, name: str) -> set[Split]:
        """Splits that a policy was simulated on."""
        return {outcome.option.split_key for outcome in self._outcomes[name].values()}

    def _tier(self, name: str) -> _Tier:
        share = self._share(name)
        return next(tier for tier in _TIERS if share >= tier.least)

    def _share(self, name: str) -> float:
        """Share of the incumbent's score; 1 for the requested policy. Meeting the constraint ranks above all else."""
        if name == self._policy:
            return 1.0
        scores = {other: self._simulations.scored(self.expected(other)[0]) for other in self._outcomes}
        (keeps, score), (incumbent_keeps, incumbent) = scores[name], max(scores.values())
        return score / incumbent if keeps == incumbent_keeps else 0.0

    def _middle_score(self, outcome: Outcome, *, margin: float) -> tuple[bool, float]:
        """Sort key by the geometric means of simulated and expected figures."""
        expected, own = self.expected_of(outcome.option), RankedOption.of(outcome, self._simulations.goal)
        middle = own._replace(
            tokens_per_s=math.sqrt(expected.tokens_per_s * own.tokens_per_s),
            tpot_s=math.sqrt(expected.tpot_s * own.tpot_s),
            ttft_s=math.sqrt(expected.ttft_s * own.ttft_s),
            score=math.sqrt(expected.score * own.score),
        )
        return self._simulations.scored(middle, margin=margin)


class Surface:
    """Expected speed, TPOT, TTFT and score of one policy's options, by the main effects of their fields and splits.

    A few dozen rounds rank two shapes that are 5 % apart by luck as often as not. But every value of every field was
    tried with many others, so its effect over all of these is known better than any single option: the log ratio of
    simulation to closed form is fitted by a sum over the values of an option's fields and its split (ridge regression).

    weights: length of each simulation relative to the shortest. estimates: closed-form tokens/s of every option.
    """

    def __init__(
        self, outcomes: Sequence[Outcome], weights: Sequence[float], goal: Goal, estimates: Mapping[Key, float]
    ) -> None:
        self._goal = goal
        self._estimates = estimates
        levels = sorted({level for outcome in outcomes for level in _levels(outcome.option)}, key=repr)
        self._columns = {level: column for column, level in enumerate(levels)}
        figures = np.log([[o.tokens_per_s, o.mean_tpot_s, o.mean_ttft_s, o.score(goal)] for o in outcomes])
        options = [outcome.option for outcome in outcomes]
        figures -= self._priors(options)
        design = self._design(options)
        weighted = design * np.array(weights)[:, None]
        self._mean = np.average(figures, axis=0, weights=weights)
        gram = weighted.T @ design + _RIDGE * np.eye(len(levels))
        self._effects = np.linalg.solve(gram, weighted.T @ (figures - self._mean))

    def expected(self, options: Sequence[Option]) -> list[RankedOption]:
        """Expected figures of options, tried or not; a value that was never tried has no effect."""
        figures = np.exp(self._priors(options) + self._mean + self._design(options) @ self._effects).tolist()
        return [
            RankedOption(option=option, tokens_per_s=tokens_per_s, tpot_s=tpot_s, ttft_s=ttft_s, score=score)
            for option, (tokens_per_s, tpot_s, ttft_s, score) in zip(options, figures, strict=True)
        ]

    def _priors(self, options: Sequence[Option]) -> npt.NDArray[np.float64]:
        """Logarithms of tokens/s, TPOT, TTFT and score in closed form, (options, 4); TTFT has no closed form."""
        speeds = [self._estimates[option.key] for option in options]
        scores = [
            score_of_speed(self._goal, speed, option.num_devices) for option, speed in zip(options, speeds, strict=True)
        ]
        priors: npt.NDArray[np.float64] = np.log(
            np.array([speeds, np.reciprocal(speeds), np.ones(len(speeds)), scores]).T
        )
        return priors

    def _design(self, options: Sequence[Option]) -> npt.NDArray[np.float64]:
        """1 where an option has a level, (options, levels)."""
        design = np.zeros((len(options), len(self._columns)))
        for row, option in zip(design, options, strict=True):
            for level in _levels(option):
                column = self._columns.get(level)
                if column is not None:
                    row[column] = 1.0
        return design


def _levels(option: Option) -> tuple[Hashable, ...]:
    """The values of an option's fields, and its split."""
    return (("split", option.split_key), *_fields(option.policy))


@cache
def _fields(policy: Policy) -> tuple[Hashable, ...]:
    return tuple(shape_of(policy).items())
