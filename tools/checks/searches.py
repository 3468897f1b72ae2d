"""Regret of a plan's search: its choices beside those of simulating every option.

A case is a folder of recorded profile and trace, searched on every second prompt and judged on the others, or a pair on
devices such as `llama-3-70b:llama-3.2-1b:h100-sxm:2:bf16`, judged on freshly synthesised prompts. `every option` means
all options of each policy, a quarter of them at length, and the best two on the whole trace, of which one is chosen as
a plan chooses. Regret is the share of speed by which a plan's choice is slower than that one, on prompts and under a
seed that no search used. Criteria, over all plans: 0.5 % in the mean, and 3 % at worst.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Goal, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import prepare
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.plan import Hardware, make_plan
from swiftspec.planner.planned_model import planned_pair
from swiftspec.planner.search.decision import Decision, decide, known_errors
from swiftspec.planner.search.evaluation import Evaluator
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.options import SearchOptions
from swiftspec.planner.search.simulations import LastRung, Simulations, by_policy
from swiftspec.planner.search.space import feasible_options
from swiftspec.policies import policy_classes
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.simulator.forward_errors import forward_errors
from tools.checks.criterion import Criterion, at_most

_MOST_MEAN_PERCENT, _MOST_PERCENT = 0.5, 3
_JUDGE_SEED = 1000
_SHORT, _LONGER = (12, 48), (30, 96)  # prompts, and output tokens of each
_KEPT, _LEAST_KEPT, _LAST = 0.25, 4, 2  # of a policy's options

Speeds = Mapping[str | None, float]  # judged tokens/s by policy; None is that of the choice


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
        target_name, draft_name, device, num_devices, quant = name.split(":")
        deployment = Deployment(device=device, num_devices=int(num_devices), quant=quant)
        target, draft = planned_pair(target_name, draft_name)
        searched_on, judged_on = (
            prepare(deployment, target=target, draft=draft, seed=seed) for seed in (0, _JUDGE_SEED)
        )
        memory = MemoryModel(
            device=deployment.spec,
            specs={Role.TARGET: target.spec, Role.DRAFT: draft.spec},
            quantisation=dict.fromkeys(Role, quant),
        )
        return cls(searched_on.profile, searched_on.trace, judged_on.trace, memory)

    def plan(self, seed: int, *, jobs: int) -> Plan:
        return make_plan(
            self.profile,
            self.trace,
            Hardware(num_devices=self.profile.num_devices, memory=self.memory),
            SearchOptions(seed=seed, num_jobs=jobs),
            progress=lambda *_: None,
        )

    def decision(self, *, jobs: int) -> Decision:
        """The choice after every option was simulated, and the best of each other policy."""
        profile, trace, errors = self.profile, self.trace, known_errors(self.profile, None)
        evaluator = Evaluator(profile, trace, num_jobs=jobs, errors=errors.forwards)
        simulations = Simulations(
            evaluator=evaluator, trace=trace, goal=Goal(), seed=_JUDGE_SEED - 1, report=lambda *_: None
        )
        searched = {each.name for each in policy_classes() if each.searched}
        options, _ = feasible_options(
            profile, trace, num_devices=profile.num_devices, memory=self.memory, policies=searched
        )
        for size, kept, least in ((_SHORT, _KEPT, _LEAST_KEPT), (_LONGER, 0.0, _LAST)):
            outcomes = simulations.run(options, simulations.sample(*size), "every option", ahead=0)
            speeds = {outcome.option.key: outcome.tokens_per_s for outcome in outcomes}
            ranked = sorted(options, key=lambda option: speeds[option.key], reverse=True)
            options = [
                option for group in by_policy(ranked) for option in group[: max(least, math.ceil(kept * len(group)))]
            ]
        whole = simulations.sample(len(trace.prompts), simulations.longest, explain=True)
        return decide(simulations, LastRung(options, whole, [], whole), None, errors)

    def judge(self) -> Callable[[Option], float]:
        """Tokens/s of an option on the prompts to judge on; each is simulated once."""
        simulator = Simulator(self.profile, self.judged, errors=forward_errors(self.profile))
        known: dict[object, float] = {}

        def judged(option: Option) -> float:
            if option.key not in known:
                run = simulator.run(option.policy, degrees=option.degrees, ranks=option.ranks, seed=_JUDGE_SEED)
                known[option.key] = measure(run.timelines).figures.tokens_per_s
            return known[option.key]

        return judged


def regrets(speeds: Speeds, best: Speeds) -> dict[str | None, float]:
    """Share of speed that each choice is behind that of every option; negative if it is ahead."""
    return {name: 1 - speed / best[name] for name, speed in speeds.items() if name in best}


def found(name: str, seeds: Sequence[int], *, prompts: int, jobs: int) -> Iterator[dict[str | None, float]]:
    """Regrets of a case's plans."""
    case = Case.of(name, num_prompts=prompts)
    judged = case.judge()
    start_s = time.perf_counter()
    decision = case.decision(jobs=jobs)
    best: dict[str | None, float] = {
        outcome.option.policy.name: judged(outcome.option) for outcome in (decision.chosen, *decision.others)
    }
    best[None] = judged(decision.chosen.option)
    console.say(
        f"{name}: every option: {time.perf_counter() - start_s:.1f} s, {best[None]:.1f} tokens/s by "
        f"{decision.chosen.option.describe()}"
    )
    for seed in seeds:
        start_s = time.perf_counter()
        plan = case.plan(seed, jobs=jobs)
        seconds = time.perf_counter() - start_s
        speeds: dict[str | None, float] = {
            policy: judged(Option(policy=each.build(), groups=each.groups, ranks=each.ranks))
            for policy, each in plan.candidates.items()
        }
        speeds[None] = speeds[plan.chosen.policy]
        regret = regrets(speeds, best)
        console.say(
            f"{name}: seed {seed}: {seconds:.1f} s, {plan.num_simulated} options, {speeds[None]:.1f} tokens/s by "
            f"{plan.chosen.describe()}: regret {regret[None]:.2%}"
        )
        yield regret


def check(
    cases: tuple[str, ...],
    seeds: tuple[int, ...] = (1, 2),
    prompts: Annotated[int, "of a recorded trace, to search and to judge on"] = 32,
    jobs: int = 1,
) -> Iterator[Criterion]:
    """Plan every case under every seed, and judge the choices."""
    every = [regret for name in cases for regret in found(name, seeds, prompts=prompts, jobs=jobs)]
    own = [100 * regret[None] for regret in every]
    others = [100 * value for regret in every for policy, value in regret.items() if policy]
    console.say(f"{len(every)} plans; every policy's best: regret {fmean(others):.2f} %, at worst {max(others):.1f} %")
    yield at_most("regret of the choice, mean", fmean(own), _MOST_MEAN_PERCENT, "%")
    yield at_most("regret of the choice, at worst", max(own), _MOST_PERCENT, "%")
