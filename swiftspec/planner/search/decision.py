"""The last stage: the winner, the best of every other policy, and how sure each prediction is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftspec.artifacts.plan import Candidate, Goal, Prediction
from swiftspec.planner.search.choice import Resampling
from swiftspec.planner.search.evaluation import Budget, Outcome
from swiftspec.planner.search.goals import limits
from swiftspec.planner.search.known_errors import NO_ERRORS, KnownErrors
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.simulations import FinalStage, RankedOption, Simulations, by_policy
from swiftspec.policies import Policy
from swiftspec.policies.base import sends_features, shape_of
from swiftspec.policies.registry import package_of

__all__ = ["Decision", "Explained", "OutOfReachError", "decide", "explained"]

_PATIENT_ROUNDS = 10  # at the 95th percentile
_LEAST_PATIENCE_S = 0.1


class OutOfReachError(ValueError):
    """Error: no simulated option meets the goal's limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Outcomes that can be described as candidates of a plan.

    Parameters
    ----------
    outcomes : sequence of Outcome
    resamplings : mapping
        By option, the resamples of the budget it was simulated with.
    """

    outcomes: Sequence[Outcome]
    resamplings: Mapping[object, Resampling]

    def candidate(self, outcome: Outcome) -> Candidate:
        """The outcome as a candidate of the plan."""
        assert outcome.metrics is not None, "the last stage explains itself"
        low, high = self.resamplings[outcome.option.key].interval(outcome)
        total_s = sum(outcome.seconds.values())
        prediction = Prediction(
            metrics=outcome.metrics,
            tokens_per_s_low=low,
            tokens_per_s_high=high,
            provenance={provenance: seconds / total_s for provenance, seconds in outcome.seconds.items()},
        )
        option = outcome.option
        return Candidate(
            policy=option.policy.name,
            package=package_of(option.policy.name),
            shape=shape_of(option.policy),
            groups=dict(option.groups),
            ranks=dict(option.ranks),
            patience_s=_patience_s(prediction, option.policy),
            prediction=prediction,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Explained):
    """Outcomes of the last stage.

    Parameters
    ----------
    chosen : Outcome
    ties : sequence of Outcome
        Options that the noise does not tell apart from it.
    others : sequence of Outcome
        The best of each other policy, best first.
    """

    chosen: Outcome
    ties: Sequence[Outcome]
    others: Sequence[Outcome]


def explained(
    simulations: Simulations, options: Sequence[Option], budget: Budget, errors: KnownErrors, what: str, *, ahead: int
) -> Explained:
    """Outcomes of options at a budget that explains their speed; `what` names them in progress reports."""
    resampling = _resampling(simulations, budget, errors)
    return Explained(
        outcomes=simulations.run(options, budget, what, ahead=ahead),
        resamplings={option.key: resampling for option in options},
    )


def _patience_s(prediction: Prediction, policy: Policy) -> float:
    """Draft timeout: longer than any round and a machine's hiccups, short compared with a user's patience.

    A head apart from its target reads the prompt only after the target has, and no slower.
    """
    metrics = prediction.metrics
    late_s = metrics.ttft_s if sends_features(policy) else 0.0
    return round(max(_LEAST_PATIENCE_S, _PATIENT_ROUNDS * metrics.figures.round_s.p95) + late_s, 3)


def decide(
    simulations: Simulations, finals: FinalStage, policy: str | None, errors: KnownErrors = NO_ERRORS
) -> Decision:
    """The winner, among `policy`'s options if given; the best of each other policy; ties.

    Raises
    ------
    ValueError
        If nothing meets the goal's limits: OutOfReachError.
    """
    outcomes: dict[object, Outcome] = {}
    resamplings: dict[object, Resampling] = {}
    ahead = len(finals.contenders) + len(finals.others)
    for options, budget in ((finals.others, finals.sample), (finals.contenders, finals.whole)):
        outcomes |= {outcome.option.key: outcome for outcome in simulations.run(options, budget, "final", ahead=ahead)}
        resamplings |= dict.fromkeys((option.key for option in options), _resampling(simulations, budget, errors))
        ahead -= len(options)

    def winner(options: Sequence[Option]) -> tuple[Outcome, list[Outcome]]:
        group = [outcomes[option.key] for option in options]
        keeping = [outcome for outcome in group if simulations.keeps(outcome)]
        return resamplings[options[0].key].winner(keeping or group)

    eligible = [option for option in finals.contenders if policy in (None, option.policy.name)]
    chosen, ties = winner(eligible)
    if not simulations.keeps(chosen):
        raise OutOfReachError(_unreachable(simulations.goal, [outcomes[option.key] for option in eligible]))
    groups = by_policy([*finals.contenders, *finals.others])
    others = [winner(group)[0] for group in groups if group[0].policy.name != chosen.option.policy.name]
    others.sort(key=simulations.score, reverse=True)
    return Decision(outcomes=list(outcomes.values()), chosen=chosen, ties=ties, others=others, resamplings=resamplings)


def _resampling(simulations: Simulations, budget: Budget, errors: KnownErrors) -> Resampling:
    return Resampling(
        num_prompts=len(budget.prompt_indices),
        num_runs=len(budget.seeds) * len(errors.forwards.mirrors),
        seed=simulations.seed,
        goal=simulations.goal,
        errors=errors,
    )


def _unreachable(goal: Goal, outcomes: Sequence[Outcome]) -> str:
    """The limit that is missed by most, for the option that comes nearest to all of them."""
    nearest = max((RankedOption.of(outcome, goal) for outcome in outcomes), key=lambda ranked: ranked.reach(goal))
    tpot_s, ttft_s = nearest.tpot_s, nearest.ttft_s
    missed = limits(goal, tokens_per_s=nearest.tokens_per_s, tpot_s=tpot_s, ttft_s=ttft_s)
    limit = min(missed, key=lambda limit: limit.share)
    most = "highest" if limit.field.startswith("min") else "lowest"
    others = " within the other limits" if len(missed) > 1 else ""
    return (
        f"{limit.field} is {limit.wanted:.4g}; the {most} that was found{others} is {limit.reached:.3g}, "
        f"by {nearest.option.describe()}"
    )
