"""Simulations of one search: budgets, outcomes so far, number left. No strategy here."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from swiftspec.artifacts.plan import Explored, Goal
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.search.evaluation import Budget, Evaluator, Outcome
from swiftspec.planner.search.goals import limits
from swiftspec.planner.search.option import Key, Option, Split
from swiftspec.progress import Progress

# Shares of a limit: an option that meets the first in a short simulation does so in a long one, too; one that misses
# the second does not.
SURE_MARGIN, WIDE_MARGIN = 0.97, 1.1
_NUM_SAMPLES = 500  # of prompts, the most typical of which is simulated

_Cell = tuple[str, Split]  # of a policy
_Result = TypeVar("_Result")


class LastRung(NamedTuple):
    """Options of the last rung and their budgets: those that may win, and the best of policies that cannot."""

    survivors: list[Option]
    whole: Budget
    others: list[Option]
    sample: Budget
    expected: "Expected | None" = None  # for options that were not simulated at length


@dataclass(slots=True, kw_only=True)
class Simulations:
    """Runs options and keeps their outcomes by budget."""

    evaluator: Evaluator
    trace: AcceptanceTrace
    goal: Goal
    seed: int
    report: Progress
    num_done: int = 0
    _outcomes: dict[Budget, dict[Key, Outcome]] = field(default_factory=dict)

    def run(self, options: Sequence[Option], budget: Budget, what: str, *, ahead: int) -> list[Outcome]:
        """Outcomes in the order of `options`; `ahead` is the number of simulations from here to the end of the search.

        Options already simulated with this budget are not simulated again.
        """
        return self.run_each([(option, budget) for option in options], what, ahead=ahead)

    def run_each(self, tasks: Sequence[tuple[Option, Budget]], what: str, *, ahead: int) -> list[Outcome]:
        """As `run`, each option with a budget of its own, the longest first."""
        for _, budget in tasks:
            self._outcomes.setdefault(budget, {})
        fresh = [task for task in tasks if task[0].key not in self._outcomes[task[1]]]
        # With the longest first no core waits at the end.
        outcomes = list(self.counted(self.evaluator.map(fresh), what, ahead=max(ahead, len(fresh))))
        for (option, budget), outcome in zip(fresh, outcomes, strict=True):
            self._outcomes[budget][option.key] = outcome
        return [self._outcomes[budget][option.key] for option, budget in tasks]

    def counted(self, results: Iterable[_Result], what: str, *, ahead: int) -> Iterator[_Result]:
        """Results of simulations, each reported as it comes; `ahead`: as of `run`."""
        total = self.num_done + ahead
        for result in results:
            self.num_done += 1
            self.report(self.num_done, total, what)
            yield result

    def score(self, outcome: Outcome) -> tuple[bool, float]:
        """Sort key: outcomes that meet the goal's limits first, by score; the others by how nearly they do."""
        return self.scored(RankedOption.of(outcome, self.goal))

    def scored(self, ranked: "RankedOption", *, margin: float = SURE_MARGIN) -> tuple[bool, float]:
        """As `score`, for expected figures; margin: share of a limit that counts as meeting it."""
        share = ranked.reach(self.goal)
        keeps = margin * share >= 1
        return keeps, ranked.score if keeps else share

    def keeps(self, outcome: Outcome) -> bool:
        return RankedOption.of(outcome, self.goal).reach(self.goal) >= 1

    def sample(self, num_prompts: int, num_tokens: int, *, num_seeds: int = 1, explain: bool = False) -> Budget:
        """A few prompts whose outputs' beginnings are, together, as easy and as diverse as the whole trace.

        The best shape depends on how easy the text is, so the few prompts must not be easier than the rest.
        """
        of_all = [float(np.mean(prompt.ranks == 0)) for prompt in self.trace.prompts]
        begun = np.array([np.mean(prompt.ranks[:num_tokens] == 0) for prompt in self.trace.prompts])
        count = min(num_prompts, len(begun))
        rng = np.random.default_rng(self.seed)
        samples = [np.sort(rng.permutation(len(begun))[:count]) for _ in range(_NUM_SAMPLES)]
        wanted = np.array([np.mean(of_all), np.std(begun)])
        distance = [np.abs(wanted - (begun[sample].mean(), begun[sample].std())).sum() for sample in samples]
        return Budget(
            prompt_indices=tuple(samples[int(np.argmin(distance))].tolist()),
            max_new_tokens=min(self.longest, num_tokens),
            seeds=tuple(range(self.seed, self.seed + num_seeds)),
            explain=explain,
            by_rounds=True,
        )

    @property
    def longest(self) -> int:
        """Output tokens of the longest prompt."""
        return max(len(prompt.target_tokens) for prompt in self.trace.prompts)

    @property
    def simulated(self) -> set[Key]:
        """Keys of all options simulated so far, at any budget."""
        return {key for outcomes in self._outcomes.values() for key in outcomes}

    @property
    def latest(self) -> dict[Key, Outcome]:
        """The outcome of every simulated option at the last budget that it was simulated with."""
        return {key: outcome for outcomes in self._outcomes.values() for key, outcome in outcomes.items()}

    def ranking(self, finalists: Iterable[Outcome], expected: "Expected | None" = None) -> list["RankedOption"]:
        """The best option of every policy on every split by its longest simulation, on the scale of its finalist.

        finalists: the best of each policy. expected: what to expect of an option, where that is known better than from
        its own simulation before the last rung.
        """
        final = {outcome.option.policy.name: outcome for outcome in finalists}
        cells: dict[_Cell, tuple[int, RankedOption]] = {}
        simulated: dict[_Cell, set[Key]] = {}
        for rung, (budget, outcomes) in enumerate(self._outcomes.items()):
            for outcome in outcomes.values():
                cell = outcome.option.policy.name, outcome.option.split_key
                simulated.setdefault(cell, set()).add(outcome.option.key)
                finalist = final.get(outcome.option.policy.name, outcome)
                if outcome is finalist:
                    found, depth = self._own(finalist), len(self._outcomes)  # what the plan says of this option
                elif expected is None or budget.explain:
                    reference = outcomes.get(finalist.option.key, finalist)  # the finalist at this budget
                    found = _scaled(self._own(outcome), self._own(finalist), self._own(reference))
                    depth = int(budget.explain) if expected else rung
                else:
                    found = _scaled(expected(outcome.option), self._own(finalist), expected(finalist.option))
                    depth = 0
                if cell not in cells or (depth, found.score) > (cells[cell][0], cells[cell][1].score):
                    cells[cell] = depth, found._replace(estimated=not budget.explain)
        return [found._replace(num_options=len(simulated[cell])) for cell, (_, found) in sorted(cells.items())]

    def _own(self, outcome: Outcome) -> "RankedOption":
        return RankedOption.of(outcome, self.goal)


class RankedOption(NamedTuple):
    """An option's place in the ranking at the end of a search.

    num_options: simulated of its policy on its split. estimated: from short simulations, not those of the last rung.
    """

    option: Option
    tokens_per_s: float
    tpot_s: float
    ttft_s: float
    score: float
    num_options: int = 1
    estimated: bool = False

    @classmethod
    def of(cls, outcome: Outcome, goal: Goal) -> "RankedOption":
        """Entry with a finalist's own figures."""
        return cls(
            option=outcome.option,
            tokens_per_s=outcome.tokens_per_s,
            tpot_s=outcome.mean_tpot_s,
            ttft_s=outcome.mean_ttft_s,
            score=outcome.score(goal),
        )

    def reach(self, goal: Goal) -> float:
        """Share of the limit that is missed the furthest: 1 or more if all are met, infinite if there is none."""
        found = limits(goal, tokens_per_s=self.tokens_per_s, tpot_s=self.tpot_s, ttft_s=self.ttft_s)
        return min((limit.share for limit in found), default=float("inf"))

    @property
    def cell(self) -> Explored:
        return Explored(
            policy=self.option.policy.name,
            split=self.option.split,
            num_devices=self.option.num_devices,
            tokens_per_s=self.tokens_per_s,
            tpot_s=self.tpot_s,
            num_options=self.num_options,
            estimated=self.estimated,
        )


Expected = Callable[[Option], RankedOption]


def _scaled(found: RankedOption, final: RankedOption, reference: RankedOption) -> RankedOption:
    """`found`, scaled by the ratio of `final` to `reference`."""
    return found._replace(
        tokens_per_s=found.tokens_per_s * final.tokens_per_s / reference.tokens_per_s,
        tpot_s=found.tpot_s * final.tpot_s / reference.tpot_s,
        ttft_s=found.ttft_s * final.ttft_s / reference.ttft_s,
        score=found.score * final.score / reference.score,
    )


def by_policy(options: Iterable[Option]) -> list[list[Option]]:
    """Options of each policy, in the order in which policies appear."""
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.policy.name, []).append(option)
    return list(groups.values())
