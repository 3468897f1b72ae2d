"""Whether the quick search could stand alone: its regret beside that of the full one.

A case is a folder of recorded profile and trace, searched on every second prompt and judged on the others, or devices
such as `h100-sxm:2:bf16` for llama-3-70b with llama-3.2-1b, judged on freshly synthesised prompts. All choices are
simulated on these prompts under one seed that no search used. Regret is the share of speed by which a choice is slower
than the best choice of any search of its case; it is given for the plan's choice and for every policy's best.
Criteria, for each case: the quick search's choice has a regret of 1 % in the mean over seeds, and of 3 % at worst.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import prepare
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.plan import Hardware, Search, make_plan
from swiftspec.planner.planned_model import planned_pair
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.simulator.forward_errors import forward_errors
from tools.checks.criterion import Criterion, at_most

__all__ = ["Found", "check", "regrets"]

_MOST_MEAN_PERCENT, _MOST_PERCENT = 1, 3
_JUDGE_SEED = 1000
_PAIR = ("llama-3-70b", "llama-3.2-1b")


class Case(NamedTuple):
    """Inputs of a search, and the prompts that its choices are judged on."""

    profile: Profile
    trace: AcceptanceTrace
    judged: AcceptanceTrace
    memory: MemoryModel | None = None

    @classmethod
    def of(cls, name: str, *, num_prompts: int) -> Case:
        if Path(name).is_dir():
            profile = Profile.load(Path(name) / "profile.json")
            trace = AcceptanceTrace.load(next(Path(name).glob("*.npz")))
            searched, judged = (replace(trace, prompts=trace.prompts[half::2][:num_prompts]) for half in (0, 1))
            return cls(profile, searched, judged)
        device, num_devices, quant = name.split(":")
        deployment = Deployment(device=device, num_devices=int(num_devices), quant=quant)
        target, draft = planned_pair(*_PAIR)
        searched_on, judged_on = (
            prepare(deployment, target=target, draft=draft, seed=seed) for seed in (0, _JUDGE_SEED)
        )
        memory = MemoryModel(
            device=deployment.spec,
            specs={Role.TARGET: target.spec, Role.DRAFT: draft.spec},
            quantisation=dict.fromkeys(Role, quant),
        )
        return cls(searched_on.profile, searched_on.trace, judged_on.trace, memory)

    def searched(self, search: Search, seed: int, *, jobs: int) -> Plan:
        return make_plan(
            self.profile,
            self.trace,
            Hardware(num_devices=self.profile.num_devices, memory=self.memory),
            SearchOptions(seed=seed, num_jobs=jobs),
            progress=lambda *_: None,
            search=search,
        )


class Found(NamedTuple):
    """Choices of a search with their judged tokens/s, by policy; None is the whole plan's choice."""

    search: Search
    seed: int
    seconds: float
    num_simulated: int
    speeds: Mapping[str | None, float]
    chosen: str


def found(case: Case, seeds: Sequence[int], *, jobs: int) -> Iterator[Found]:
    """Results of both searches under every seed."""
    simulator = Simulator(case.profile, case.judged, errors=forward_errors(case.profile))
    known: dict[str, float] = {}

    def judged(candidate: Candidate) -> float:
        name = candidate.describe()
        if name not in known:
            degrees = {role: len(group) for role, group in candidate.groups.items()}
            run = simulator.run(candidate.build(), degrees=degrees, ranks=candidate.ranks, seed=_JUDGE_SEED)
            known[name] = measure(run.timelines).figures.tokens_per_s
        return known[name]

    for seed in seeds:
        for search in Search:
            start_s = time.perf_counter()
            plan = case.searched(search, seed, jobs=jobs)
            seconds = time.perf_counter() - start_s
            speeds: dict[str | None, float] = {None: judged(plan.chosen)}
            speeds.update((name, judged(candidate)) for name, candidate in plan.candidates.items())
            yield Found(search, seed, seconds, plan.num_simulated, speeds, plan.chosen.describe())


def regrets(every: Sequence[Found]) -> Mapping[Search, Mapping[str | None, list[float]]]:
    """Regrets by search and policy (None: the plan's choice), one for each seed."""
    best: dict[str | None, float] = defaultdict(float)
    for one in every:
        for name, speed in one.speeds.items():
            best[name] = max(best[name], speed)
    by_search: dict[Search, dict[str | None, list[float]]] = {search: defaultdict(list) for search in Search}
    for one in every:
        for name, speed in one.speeds.items():
            by_search[one.search][name].append(1 - speed / best[name])
    return by_search


def check(
    cases: tuple[str, ...],
    seeds: tuple[int, ...] = (1, 2),
    prompts: Annotated[int, "of a recorded trace, to search and to judge on"] = 32,
    jobs: int = 1,
) -> Iterator[Criterion]:
    """Search every case under every seed, and judge the quick search's choices."""
    for name in cases:
        every = []
        for one in found(Case.of(name, num_prompts=prompts), seeds, jobs=jobs):
            every.append(one)
            console.say(
                f"{name}: {one.search} seed {one.seed}: {one.seconds:.1f} s, {one.num_simulated} options, "
                f"{one.speeds[None]:.1f} tokens/s by {one.chosen}"
            )
        by_search = regrets(every)
        for search, by_policy in by_search.items():
            own, others = by_policy[None], [value for key, values in by_policy.items() if key for value in values]
            console.say(
                f"{name}: {search}: regret of the choice mean {fmean(own):.2%}, max {max(own):.2%}; "
                f"of every policy's best mean {fmean(others):.2%}, max {max(others):.2%}"
            )
        quick = by_search[Search.QUICK][None]
        yield at_most(f"{name}: regret of the quick search, mean", 100 * fmean(quick), _MOST_MEAN_PERCENT, "%")
        yield at_most(f"{name}: regret of the quick search, at worst", 100 * max(quick), _MOST_PERCENT, "%")
