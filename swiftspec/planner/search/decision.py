"""The last rung of a search: the winner, the best of every other policy, and how sure each prediction is.

Prompts, forwards and acceptance are uncertain: a bootstrap over prompts and the known errors of a plan's inputs tell
by how much, and which options are as good as the best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.gain import Gain
from swiftspec.artifacts.plan import Acceptance, Candidate, Goal, Prediction
from swiftspec.artifacts.profile import Profile
from swiftspec.engines import engine_named
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.goals import limits, score
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.simulations import LastRung, RankedOption, Simulations, by_policy
from swiftspec.policies import Layout, Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import sends_features, shape_of
from swiftspec.policies.effects import Role
from swiftspec.policies.registry import package_of
from swiftspec.simulator.forward_errors import EXACT, ForwardErrors, forward_errors
from swiftspec.timing.latency import Provenance

_PATIENT_ROUNDS = 10  # at the 95th percentile
_LEAST_PATIENCE_S = 0.1
_NUM_RESAMPLES = 1000
_LEVELS = (0.025, 0.975)
# A difference within the noise may still be real: never give up more than this for simplicity.
MOST_GIVEN_UP = 0.02
_ANY_GOAL = Goal()
# Root mean square over sources of the errors of tokens per round in `swiftspec study backtest`: SwiftSpec's tables,
# vLLM's chains, SpecInfer's and Sequoia's trees. `studies/backtest/coverage.py` computes it.
PUBLISHED_ACCEPTANCE: Final = 0.046
# Relative standard deviations: of tokens per round by the text alone (root mean square of `Acceptance by text` there),
# and of this package's own gains over plain decoding (47 policies of the five recorded validations in `profiles`).
UNKNOWN_ACCEPTANCE: Final = 0.24
_OWN_GAINS: Final = 0.039


class OutOfReachError(ValueError):
    """Error: no simulated option meets the goal's limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownErrors:
    """Relative standard deviations.

    forwards: of each role's forwards. acceptance: of the tokens per round; None where it is unknown, as for a pair that
    is planned with a proxy pair. gains: of a gain over plain decoding, by what a round takes
    beside its forwards.
    """

    forwards: ForwardErrors = EXACT
    acceptance: float | None = 0.0
    gains: float = 0.0

    @property
    def of_forwards(self) -> npt.NDArray[np.float64]:
        """Errors of forwards in the order of `Role`."""
        return np.array([self.forwards.of_role.get(role, 0.0) for role in Role])

    @property
    def by_name(self) -> dict[str, float | None]:
        """Errors for the plan: non-zero or unknown ones only."""
        named = {f"{role} forwards": self.forwards.of_role.get(role, 0.0) for role in Role}
        return {name: error for name, error in (*named.items(), ("acceptance", self.acceptance)) if error != 0.0}


NO_ERRORS: Final = KnownErrors()


def acceptance_error(acceptance: Acceptance) -> float | None:
    """Relative standard deviation of the tokens per round; None where it is unknown."""
    known: dict[Provenance, float] = {
        Provenance.MEASURED: 0.0,
        Provenance.GIVEN: PUBLISHED_ACCEPTANCE,
        Provenance.PUBLISHED: PUBLISHED_ACCEPTANCE,
    }
    return known.get(acceptance.provenance, acceptance.spread)


def gain_error(engine: str | None) -> float:
    """Relative standard deviation of a gain whose acceptance is known, under an engine; this package's own if None."""
    return engine_named(engine).constants().gain_spread if engine else _OWN_GAINS


def known_errors(profile: Profile, acceptance: Acceptance | None, *, engine: str | None = None) -> KnownErrors:
    """The errors of a plan's inputs; recorded acceptance has none except the spread over its prompts.

    engine: which serves, if not this package's own.
    """
    of_acceptance = acceptance_error(acceptance) if acceptance else 0.0
    return KnownErrors(forwards=forward_errors(profile), acceptance=of_acceptance, gains=gain_error(engine))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """The same resamples of prompts for every outcome, so that outcomes are compared pairwise.

    Prompts are the sampling unit, because a plan is made for prompts other than the traced ones. With a single prompt
    only its runs are resampled.

    errors: errors of forwards and acceptance, which all prompts share.
    """

    seed: int
    goal: Goal = _ANY_GOAL
    errors: KnownErrors = NO_ERRORS

    def interval(self, outcome: Outcome) -> tuple[float, float]:
        """95 % interval of tokens/s over prompts, forwards and acceptance; it always contains the estimate itself.

        Speed is taken as proportional to the tokens per round, the quantity whose error is known.
        """
        drafts = outcome.option.policy.layout is not Layout.TARGET_ONLY
        spread = [*-outcome.elasticities * self.errors.of_forwards, self.errors.acceptance or 0.0 if drafts else 0.0]
        _, deviations = self._draws(outcome.request_s)
        scores = self._scores(outcome, _ANY_GOAL) * np.exp(deviations @ np.array(spread))
        low, high = np.quantile(scores, _LEVELS)
        return min(float(low), outcome.tokens_per_s), max(float(high), outcome.tokens_per_s)

    def winner(self, outcomes: Sequence[Outcome]) -> tuple[Outcome, list[Outcome]]:
        """The simplest of the outcomes that are as good as the best, and the others of these, best first."""
        best = max(outcomes, key=lambda outcome: outcome.score(self.goal))
        tied = [outcome for outcome in outcomes if self._ties(outcome, best)]
        chosen = min(tied, key=lambda outcome: outcome.option.simplicity)
        others = [outcome for outcome in tied if outcome is not chosen]
        return chosen, sorted(others, key=lambda outcome: -outcome.score(self.goal))

    def _ties(self, outcome: Outcome, best: Outcome) -> bool:
        """Whether the 95 % interval of `best`'s gain contains 0, and the gain is small anyway."""
        gains = self._scores(best, self.goal) / self._scores(outcome, self.goal) - 1
        small = best.score(self.goal) / outcome.score(self.goal) - 1 <= MOST_GIVEN_UP
        return small and float(np.quantile(gains, _LEVELS[0])) <= 0

    def _scores(self, outcome: Outcome, goal: Goal) -> npt.NDArray[np.float64]:
        """Score of every resample, (resamples,)."""
        tokens = np.broadcast_to(outcome.tokens, outcome.request_s.shape)
        columns = [self._resampled(column) for column in (tokens, outcome.request_s, outcome.tpot_s)]
        return score(
            goal,
            tokens=columns[0],
            request_s=columns[1],
            tpot_s=columns[2],
            num_devices=outcome.option.num_devices,
            axes=(0, 2),
        )

    def _resampled(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(runs, prompts) -> (runs or prompts, resamples, units)."""
        units, _ = self._draws(values)
        return (values if values.shape[1] > 1 else values.T)[:, units]

    def _draws(self, values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Of values (runs, prompts): the units of every resample, and its deviations of forwards and of acceptance."""
        num_runs, num_prompts = values.shape
        return _drawn(self.seed, num_prompts if num_prompts > 1 else num_runs)


@lru_cache(maxsize=4)
def _drawn(seed: int, num_units: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    units = rng.integers(0, num_units, (_NUM_RESAMPLES, num_units))
    return units, rng.standard_normal((_NUM_RESAMPLES, len(Role) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Outcomes of the last rung.

    ties: options that the noise does not tell apart from it. others: the best of each other policy, best first.
    """

    chosen: Outcome
    ties: Sequence[Outcome]
    others: Sequence[Outcome]
    resampling: Resampling

    def candidate(self, outcome: Outcome) -> Candidate:
        """Any outcome of a budget that explains its speed, as a candidate of a plan."""
        assert outcome.metrics is not None, "it explains itself"
        low, high = self.resampling.interval(outcome)
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

    def gain(self, load: Mapping[str, float] | None = None) -> Gain | None:
        """The gain of the best policy that drafts over plain decoding; None if only one of both was simulated.

        load: speeds by policy under a load, which replace those of one request.
        """
        outcomes = {outcome.option.policy.name: outcome for outcome in (self.chosen, *self.others)}
        speeds = {name: outcome.tokens_per_s for name, outcome in outcomes.items()} if load is None else load
        plain = outcomes.get(Autoregressive.name)
        drafting = [name for name in outcomes if name != Autoregressive.name and name in speeds]
        if plain is None or Autoregressive.name not in speeds or not drafting:
            return None
        best = max(drafting, key=lambda name: speeds[name])
        errors = self.resampling.errors
        differing = (outcomes[best].elasticities - plain.elasticities) * errors.of_forwards
        acceptance = UNKNOWN_ACCEPTANCE if errors.acceptance is None else errors.acceptance
        return Gain.within(
            speeds[best] / speeds[Autoregressive.name],
            spread=float(np.hypot(np.linalg.norm(differing), errors.gains)),
            acceptance=acceptance,
            policy=best,
        )


def _patience_s(prediction: Prediction, policy: Policy) -> float:
    """Draft timeout: longer than any round and a machine's hiccups, short compared with a user's patience.

    A head apart from its target reads the prompt only after the target has, and no slower.
    """
    metrics = prediction.metrics
    late_s = metrics.ttft_s if sends_features(policy) else 0.0
    return round(max(_LEAST_PATIENCE_S, _PATIENT_ROUNDS * metrics.figures.round_s.p95) + late_s, 3)


def decide(simulations: Simulations, last: LastRung, policy: str | None, errors: KnownErrors = NO_ERRORS) -> Decision:
    """The winner, among `policy`'s options if given; the best of each other policy; ties.

    ValueError: if nothing meets the goal's limits: OutOfReachError.
    """
    tasks = [*((option, last.whole) for option in last.survivors), *((option, last.sample) for option in last.others)]
    found = simulations.run_each(tasks, "final", ahead=len(tasks))
    outcomes = {outcome.option.key: outcome for outcome in found}
    resampling = Resampling(seed=simulations.seed, goal=simulations.goal, errors=errors)

    def winner(options: Sequence[Option]) -> tuple[Outcome, list[Outcome]]:
        group = [outcomes[option.key] for option in options]
        keeping = [outcome for outcome in group if simulations.keeps(outcome)]
        return resampling.winner(keeping or group)

    eligible = [option for option in last.survivors if policy in (None, option.policy.name)]
    chosen, ties = winner(eligible)
    if not simulations.keeps(chosen):
        raise OutOfReachError(_unreachable(simulations.goal, [outcomes[option.key] for option in eligible]))
    groups = by_policy([*last.survivors, *last.others])
    others = [winner(group)[0] for group in groups if group[0].policy.name != chosen.option.policy.name]
    others.sort(key=simulations.score, reverse=True)
    return Decision(chosen=chosen, ties=ties, others=others, resampling=resampling)


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
