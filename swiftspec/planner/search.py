"""From a profile and a trace to a plan: feasible options, closed-form bounds, then simulation by successive halving.

Every stage simulates more of the trace for fewer options, under the same seeds. Policies do not compete before the last
stage: the best of each survives, because a plan names what it was better than.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from swiftspec.acceptance import AcceptanceTrace
from swiftspec.documents import Origin
from swiftspec.plan import Basis, Candidate, Plan, Prediction
from swiftspec.planner.bounds import ClosedForms
from swiftspec.planner.choice import Resampling
from swiftspec.planner.evaluation import Effort, Evaluator, Outcome
from swiftspec.planner.space import Option, feasible_options
from swiftspec.policies import POLICIES
from swiftspec.policies.base import shape_of
from swiftspec.profile import Profile

__all__ = ["make_plan"]

# Share of prompts and of each output that a stage simulates, and how many of a policy's options it keeps at least.
_STAGES = ((0.05, 0.25, 8), (0.05, 0.5, 4), (0.25, 1.0, 2))
_KEPT = 0.25  # share of a policy's options that a stage keeps
_LEAST_PROMPTS = 12
_LEAST_TOKENS = 16
# The last stage repeats a short trace under several seeds; in a long one the prompts are repetition enough.
_MOST_SEEDS = 3
_ENOUGH_REQUESTS = 96

Progress = Callable[[int, int, str], None]


def make_plan(
    *,
    profile: Profile,
    profile_basis: Basis,
    trace: AcceptanceTrace,
    trace_basis: Basis,
    num_devices: int,
    policy: str | None,
    seed: int,
    num_jobs: int,
    progress: Progress,
) -> Plan:
    """The fastest policy, shape and placement for one user of `num_devices` devices, by simulation.

    Parameters
    ----------
    profile_basis, trace_basis : Basis
        The files that profile and trace were read from.
    policy : str or None
        Choose among this policy's options only; the alternatives are the other policies' best all the same.
    seed : int
        The same seed and files give the same plan, whatever `num_jobs`.
    num_jobs : int
        Processes; 1 stays in this one, -1 starts one per core.
    progress : callable
        Hears (done, total, what) in options simulated.

    Raises
    ------
    ValueError
        If the policy is unknown, or nothing is feasible; the reasons are in the message.
    """
    _check(num_devices=num_devices, num_jobs=num_jobs, policy=policy)
    options, rejected = feasible_options(profile, trace, num_devices=num_devices)
    if not any(policy in (None, option.policy.name) for option in options):
        reasons = "; ".join(reason for reason in rejected if reason.startswith(policy or ""))
        raise ValueError(f"policy is {policy or 'auto'}, and nothing of it is feasible: {reasons}")
    search = _Search(
        evaluator=Evaluator(profile, trace, num_jobs=num_jobs),
        trace=trace,
        seed=seed,
        report=progress,
        rejected=rejected,
    )
    contenders = search.prune(options, profile)
    chosen, alternatives, ties = search.decide(search.halve(contenders), policy)
    return Plan(
        origin=Origin.here(),
        device=profile.device,
        num_devices=num_devices,
        target=profile.target,
        draft=profile.draft,
        profile=profile_basis,
        trace=trace_basis,
        max_new_tokens=max(len(prompt.target_tokens) for prompt in trace.prompts),
        chosen=chosen,
        alternatives=tuple(alternatives),
        ties=tuple(ties),
        num_simulated=len(contenders),
        rejected=dict(rejected),
    )


def _check(*, num_devices: int, num_jobs: int, policy: str | None) -> None:
    if num_devices < 1:
        raise ValueError(f"num_devices is {num_devices}; expected at least 1")
    if num_jobs < 1 and num_jobs != -1:
        raise ValueError(f"num_jobs is {num_jobs}; expected at least 1, or -1 for every core")
    if policy is not None and policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; expected one of {', '.join(POLICIES)}")


@dataclass(slots=True, kw_only=True)
class _Search:
    """The stages of one search, and how far they are."""

    evaluator: Evaluator
    trace: AcceptanceTrace
    seed: int
    report: Progress
    rejected: Counter[str]
    num_done: int = 0

    def prune(self, options: list[Option], profile: Profile) -> list[Option]:
        """Drop what cannot reach, even at its bound, the speed simulated for its policy's most plausible option.

        Both over the first stage's prompts, their outputs whole: a bound holds for no part of an output.
        """
        effort = self._effort(_STAGES[0][0], 1.0)
        prompts = tuple(self.trace.prompts[index] for index in effort.prompt_indices)
        closed = ClosedForms(profile, replace(self.trace, prompts=prompts))
        most_plausible = [max(group, key=closed.estimate) for group in _by_policy(options)]
        ahead = len(most_plausible) + _num_ahead(options)
        outcomes = self._run(most_plausible, effort, "bounds", ahead=ahead)
        reached = {outcome.option.policy.name: outcome.tokens_per_s for outcome in outcomes}
        kept = []
        for option in options:
            name = option.policy.name
            if closed.bound(option) >= reached[name]:
                kept.append(option)
            else:
                self.rejected[f"{name}: its closed-form bound is below the simulated speed of another {name}"] += 1
        return kept

    def halve(self, options: list[Option]) -> list[Option]:
        """The best options of every policy, by ever longer simulations."""
        for number, (prompts, tokens, least_kept) in enumerate(_STAGES):
            what = f"stage {number + 1} of {len(_STAGES)}"
            ahead = _num_ahead(options, stage=number)
            outcomes = self._run(options, self._effort(prompts, tokens), what, ahead=ahead)
            speed = {outcome.option.key: outcome.tokens_per_s for outcome in outcomes}
            options = [
                option
                for group in _by_policy(options)
                for option in sorted(group, key=lambda option: -speed[option.key])[: _num_kept(len(group), least_kept)]
            ]
        return options

    def decide(self, finalists: list[Option], policy: str | None) -> tuple[Candidate, list[Candidate], list[str]]:
        """The winner, among `policy`'s options if that is given; the best of each other policy, best first; ties."""
        num_seeds = min(_MOST_SEEDS, math.ceil(_ENOUGH_REQUESTS / len(self.trace.prompts)))
        effort = self._effort(1.0, 1.0, num_seeds=num_seeds, explain=True)
        outcomes = self._run(finalists, effort, "final", ahead=len(finalists))
        resampling = Resampling(num_prompts=len(effort.prompt_indices), num_seeds=num_seeds, seed=self.seed)
        eligible = [outcome for outcome in outcomes if policy in (None, outcome.option.policy.name)]
        chosen, ties = resampling.winner(eligible)
        others: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.option.policy.name != chosen.option.policy.name:
                others.setdefault(outcome.option.policy.name, []).append(outcome)
        best = [resampling.winner(group)[0] for group in others.values()]
        best.sort(key=lambda outcome: -outcome.tokens_per_s)
        tied = [_candidate(outcome, resampling).describe() for outcome in ties]
        return _candidate(chosen, resampling), [_candidate(outcome, resampling) for outcome in best], tied

    def _effort(self, prompts: float, tokens: float, *, num_seeds: int = 1, explain: bool = False) -> Effort:
        """A share of the prompts, spread over the trace, and of the longest output."""
        num_prompts = len(self.trace.prompts)
        count = min(num_prompts, max(_LEAST_PROMPTS, math.ceil(prompts * num_prompts)))
        indices = np.linspace(0, num_prompts - 1, count).round().astype(int)
        longest = max(len(prompt.target_tokens) for prompt in self.trace.prompts)
        return Effort(
            prompt_indices=tuple(indices.tolist()),
            max_new_tokens=min(longest, max(_LEAST_TOKENS, math.ceil(tokens * longest))),
            seeds=tuple(range(self.seed, self.seed + num_seeds)),
            explain=explain,
        )

    def _run(self, options: Sequence[Option], effort: Effort, what: str, *, ahead: int) -> list[Outcome]:
        """Simulate; `ahead` is the number of simulations from here to the end, these included."""
        before, total = self.num_done, self.num_done + max(ahead, len(options))
        outcomes = self.evaluator.run(options, effort, done=lambda count: self.report(before + count, total, what))
        self.num_done += len(options)
        return outcomes


def _candidate(outcome: Outcome, resampling: Resampling) -> Candidate:
    assert outcome.metrics is not None, "the last stage explains itself"
    low, high = resampling.interval(outcome)
    total_s = sum(outcome.seconds.values())
    prediction = Prediction(
        metrics=outcome.metrics,
        tokens_per_s_low=low,
        tokens_per_s_high=high,
        provenance={provenance: seconds / total_s for provenance, seconds in outcome.seconds.items()},
    )
    option = outcome.option
    return Candidate(
        policy=option.policy.name, shape=shape_of(option.policy), groups=dict(option.groups), prediction=prediction
    )


def _by_policy(options: Sequence[Option]) -> list[list[Option]]:
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.policy.name, []).append(option)
    return list(groups.values())


def _num_kept(count: int, least: int) -> int:
    return min(count, max(least, math.ceil(_KEPT * count)))


def _num_ahead(options: Sequence[Option], *, stage: int = 0) -> int:
    """Simulations from a stage on, the last one included."""
    counts = [len(group) for group in _by_policy(options)]
    ahead = 0
    for _, _, least_kept in _STAGES[stage:]:
        ahead += sum(counts)
        counts = [_num_kept(count, least_kept) for count in counts]
    return ahead + sum(counts)
