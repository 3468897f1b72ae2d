"""The thorough search: closed-form bounds, then every option in successively longer simulations.

Every rung simulates more of the trace for fewer options, with the same seeds. Policies do not compete before the last
rung: the best of each survives, because a plan lists the alternatives to its choice.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from swiftspec.artifacts.profile import Profile
from swiftspec.planner.search.bounds import ClosedForms
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.simulations import LastRung, Simulations, by_policy

__all__ = ["successive_halving"]

# Shares of prompts and of each output that a rung simulates, and the fewest options of a policy that it keeps.
_RUNGS = ((0.05, 0.25, 8), (0.05, 0.5, 4), (0.25, 1.0, 2))
_KEPT = 0.25  # share of a policy's options that a rung keeps
# The last rung repeats a short trace with several seeds; in a long one the prompts are repetition enough.
_MOST_SEEDS = 3
_ENOUGH_REQUESTS = 96


def successive_halving(
    simulations: Simulations, options: list[Option], profile: Profile, rejected: Counter[str]
) -> LastRung:
    """The best options of every policy; options that the bound rules out are counted in `rejected`."""
    options = _prune(simulations, options, profile, rejected)
    for number, (prompts, tokens, least_kept) in enumerate(_RUNGS):
        what = f"stage {number + 1} of {len(_RUNGS)}"
        outcomes = simulations.run(
            options, simulations.share(prompts, tokens), what, ahead=_num_ahead(options, rung=number)
        )
        score = {outcome.option.key: simulations.score(outcome) for outcome in outcomes}
        options = [
            option
            for group in by_policy(options)
            for option in sorted(group, key=lambda option: score[option.key], reverse=True)[
                : _num_kept(len(group), least_kept)
            ]
        ]
    num_seeds = min(_MOST_SEEDS, math.ceil(_ENOUGH_REQUESTS / len(simulations.trace.prompts)))
    whole = simulations.share(1.0, 1.0, num_seeds=num_seeds, explain=True)
    return LastRung(options, whole, [], whole)


def _prune(simulations: Simulations, options: list[Option], profile: Profile, rejected: Counter[str]) -> list[Option]:
    """Drop options whose bound is below the simulated score of their policy's most plausible option.

    That option always stays: with a noisy profile, in which forwards are faster at longer contexts, a bound may not
    hold. Both are over the first rung's prompts with whole outputs: a bound does not hold for a part of an output.
    """
    budget = simulations.share(_RUNGS[0][0], 1.0)
    prompts = tuple(simulations.trace.prompts[index] for index in budget.prompt_indices)
    closed = ClosedForms(profile, replace(simulations.trace, prompts=prompts))
    most_plausible = [max(group, key=closed.estimate) for group in by_policy(options)]
    outcomes = simulations.run(most_plausible, budget, "bounds", ahead=len(most_plausible) + _num_ahead(options))
    simulated = {option.key for option in most_plausible}
    # An option that misses the constraint is no standard for others.
    reached = {o.option.policy.name: o.score(simulations.goal) if simulations.keeps(o) else 0.0 for o in outcomes}
    kept = []
    for option in options:
        name = option.policy.name
        if option.key in simulated or closed.bound(option, simulations.goal) >= reached[name]:
            kept.append(option)
        else:
            rejected[f"{name}: its closed-form bound is below the simulated speed of another {name}"] += 1
    return kept


def _num_kept(count: int, least: int) -> int:
    return min(count, max(least, math.ceil(_KEPT * count)))


def _num_ahead(options: Sequence[Option], *, rung: int = 0) -> int:
    """Simulations from a rung to the end, the last rung included."""
    counts = [len(group) for group in by_policy(options)]
    ahead = 0
    for _, _, least_kept in _RUNGS[rung:]:
        ahead += sum(counts)
        counts = [_num_kept(count, least_kept) for count in counts]
    return ahead + sum(counts)
