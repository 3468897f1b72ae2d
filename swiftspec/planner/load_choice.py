"""Choice of a plan for many requests: the best options of the search, simulated under the load.

First the best option of every policy, each for one request. Then the most plausible shape of each for as many requests
at once as the leader has, since rows cost more the more requests share a step: fewer rows, branches or guesses. And
variants of the policies that lead under the load, on other splits too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.under_load import DecodePool, LoadPrediction, UnderLoad
from swiftspec.costmodel.steps import StepWork
from swiftspec.planner.load import Load
from swiftspec.planner.search.backends import Workers, uncollected
from swiftspec.planner.search.decision import OutOfReachError
from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.option import Key, Option
from swiftspec.planner.search.searches import Searches
from swiftspec.planner.search.simulations import RankedOption
from swiftspec.planner.under_load.load_curves import Means, SharedSteps
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.planner.under_load.serving_engine import ServingEngine
from swiftspec.policies.effects import Role
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.setup import Setup

MOST_CANDIDATES = 30
_MOST_SPLITS = 3  # of a policy, besides its best one
_FEWER_ROWS = (2, 4, 8)  # divisors of the rows of a verification
_Task = tuple[Candidate, int | None]  # with the blocks that its devices have memory for


def _read_per_s(deployed: ServingEngine, prompt_tokens: int) -> float:
    """Prompt tokens that an instance reads in a second, in steps that are full of whole prompts or of a part of one."""
    most = deployed.limits.step_tokens
    if prompt_tokens <= most:
        at_once = most // prompt_tokens
        work = StepWork(chunks=[(prompt_tokens, 0)] * at_once, sampled=at_once)
        return at_once * prompt_tokens / deployed.step_s(work)
    parts = [(min(most, prompt_tokens - read), read) for read in range(0, prompt_tokens, most)]
    return prompt_tokens / sum(deployed.step_s(StepWork(chunks=[part], sampled=1)) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDecision:
    """The option with the highest goodput, and the best one of every other policy, best first.

    fleet: of which the option is a replica, under its share of the load; the others need no more devices.
    """

    option: Option
    chosen: Candidate
    alternatives: tuple[Candidate, ...]
    under_load: UnderLoad
    fleet: Fleet | None = None


class _LoadOutcome(NamedTuple):
    """An option with its figures, for one request and under the load. keeps: the limits of the plan's goal."""

    option: Option
    candidate: Candidate
    prediction: LoadPrediction
    keeps: bool


def choose_for_load(load: Load, found: Searches) -> LoadDecision:
    """The candidate with the highest goodput, or without any limits the one with the lowest mean end-to-end time.

    Candidates in which enough requests keep their limits come first; if there are none, the best of all is chosen.
    """
    load.check_role()
    load = replace(load, options=load.options.on(found.profile.device))
    simulations, decision, policy, budget = found.simulations, found.decision, found.policy, found.widest.whole
    predictor = Predictor(found.profile, simulations.trace, serving=load.serving, seed=simulations.seed)
    workers = Workers(partial(_served, load, predictor), found.num_jobs)
    eligible_first = sorted(
        [decision.chosen, *decision.others], key=lambda one: policy not in (None, one.option.policy.name)
    )
    first = eligible_first[:MOST_CANDIDATES]
    ahead = 2 * (MOST_CANDIDATES - len(first))
    served = _serve(first, load, found, workers, ahead=ahead)
    leading = _ordered(served, load, policy)
    leaders, at_once = [one.option for one in leading], max(1, round(leading[0].prediction.mean_batch))
    likely = chain(_shaped_for(at_once, leaders, load, found), _variants(leaders, simulations.latest, found.ranking()))
    known = {option.key for option in leaders}
    fresh = {option.key: option for option in likely if option.key not in known}
    variants = list(fresh.values())[: MOST_CANDIDATES - len(first)]
    more = simulations.run(variants, budget, "variants", ahead=2 * len(variants))
    served += _serve(more, load, found, workers, ahead=0)
    ordered = _ordered(served, load, policy)
    best = ordered[0]
    if not best.keeps or policy not in (None, best.option.policy.name):
        raise OutOfReachError("no candidate that was simulated under the workload meets the goal's other limits")
    by_policy: dict[str, _LoadOutcome] = {}
    for one in ordered:
        by_policy.setdefault(one.option.policy.name, one)
    (alone,) = (one for one in served if one.option.key == decision.chosen.option.key)
    return LoadDecision(
        option=best.option,
        chosen=best.candidate,
        alternatives=tuple(one.candidate for one in by_policy.values() if one is not best),
        under_load=described_load(
            load,
            {name: one.prediction for name, one in by_policy.items()},
            alone.prediction,
            seed=simulations.seed,
            num_candidates=len(served),
            pool=_decode_pool(load, best),
        ),
    )


def described_load(
    load: Load,
    predictions: Mapping[str, LoadPrediction],
    alone: LoadPrediction,
    *,
    seed: int,
    num_candidates: int,
    pool: DecodePool | None = None,
) -> UnderLoad:
    """Predictions of the chosen option and others, by policy. alone: of the best for one request at a time."""
    return UnderLoad(
        workload=load.basis,
        arrivals=str(load.workload.arrivals),
        num_requests=len(load.workload.requests),
        num_simulated=len(load.simulated.requests),
        seed=seed,
        goal=load.goal,
        options=load.options,
        num_candidates=num_candidates,
        predictions=dict(predictions),
        single_request=alone,
        engine=load.serving.described() if load.serving else "",
        repeated_share=load.workload.repeated_share,
        decode_pool=pool,
    )


def _decode_pool(load: Load, best: _LoadOutcome) -> DecodePool | None:
    """What reads the prompts of a pool that only decodes, if it is one."""
    if load.serving is None or load.transfer_s is None:
        return None
    reading = load.serving.on(len(best.candidate.groups[Role.TARGET]), context=load.workload.longest_request)
    mean, rate = round(Means.of(load.simulated).prompt_tokens), load.simulated.rate
    return DecodePool(
        transfer_s=load.transfer_s,
        prompt_tokens_per_s=(best.prediction.metrics.request_throughput if rate is None else rate) * mean,
        prefill_tokens_per_s=_read_per_s(reading, mean),
    )


def _ordered(served: Iterable[_LoadOutcome], load: Load, policy: str | None) -> list[_LoadOutcome]:
    """Best first; those that may be chosen before all others; of equals the simpler one."""

    def rank(one: _LoadOutcome) -> tuple[bool, bool, tuple[bool, float, float]]:
        return policy in (None, one.option.policy.name), one.keeps, one.prediction.score(load.goal)

    return sorted(sorted(served, key=lambda one: one.option.simplicity), key=rank, reverse=True)


def _shaped_for(at_once: int, leaders: Sequence[Option], load: Load, found: Searches) -> Iterator[Option]:
    """The most plausible shape and split of each policy for as many requests, those of the best leader first.

    Closed forms know nothing of drafts from the text, nor of plain decoding's shape: it has none.
    """
    closed = ClosedForms(found.profile, found.simulations.trace)
    most_rows = load.serving.limits.step_tokens if load.serving else BatchLimits().max_rows
    shared = SharedSteps(found.profile, closed.context, at_once, most_rows)
    for leader in leaders:
        if not (leader.policy.plain or leader.policy.drafts_from_text):
            own = [option for option in found.options if option.policy.name == leader.policy.name]
            plausible = max(own, key=lambda option: closed.estimate(option, shared))
            yield plausible
            yield from (replace(plausible, policy=policy) for policy in plausible.policy.load_variants())


def _variants(
    leaders: Sequence[Option], latest: Mapping[Key, Outcome], ranking: Sequence[RankedOption]
) -> Iterator[Option]:
    """Variants of the leaders' options, those of the best leader first."""
    for leader in leaders:
        own = [outcome for outcome in latest.values() if outcome.option.policy.name == leader.policy.name]
        here = [outcome for outcome in own if outcome.option.split_key == leader.split_key]
        elsewhere = sorted(
            (found for found in ranking if found.option.policy.name == leader.policy.name),
            key=lambda found: found.score,
            reverse=True,
        )
        splits = [found.option for found in elsewhere if found.option.split_key != leader.split_key][:_MOST_SPLITS]
        seen: set[Key] = {leader.key}
        for option in chain(_narrower(leader, here), splits):
            if option.key not in seen:
                seen.add(option.key)
                yield option


def _narrower(leader: Option, outcomes: Sequence[Outcome]) -> Iterator[Option]:
    """The fastest options with at most a half, a quarter and an eighth of the leader's rows."""
    for divisor in _FEWER_ROWS:
        fitting = [one for one in outcomes if divisor * one.option.policy.target_rows <= leader.policy.target_rows]
        if fitting:
            yield max(fitting, key=lambda one: one.tokens_per_s).option


def _serve(
    outcomes: Sequence[Outcome], load: Load, found: Searches, workers: "Workers[_Task, LoadPrediction]", *, ahead: int
) -> list[_LoadOutcome]:
    """Every option with its figures; `ahead` simulations are still to come after these."""
    rooms = [
        found.memory.num_blocks(outcome.option, longest=load.workload.longest_request) if found.memory else None
        for outcome in outcomes
    ]
    tasks = list(zip(map(found.decision.candidate, outcomes), rooms, strict=True))
    predictions = found.simulations.counted(workers.map(tasks), "under load", ahead=len(tasks) + ahead)
    return [
        _LoadOutcome(outcome.option, candidate, prediction, found.simulations.keeps(outcome))
        for outcome, (candidate, _), prediction in zip(outcomes, tasks, predictions, strict=True)
    ]


@uncollected()
def _served(load: Load, predictor: Predictor, task: _Task) -> LoadPrediction:
    """A candidate under a load: always the same requests, with the same texts."""
    candidate, room = task
    served = predictor.serve(
        Setup.of(candidate),
        load.simulated,
        goal=load.goal,
        options=load.options.with_room(room),
        transfer_s=load.transfer_s,
    )
    speed = candidate.prediction.metrics.figures.tokens_per_s
    return LoadPrediction.of(served, candidate=candidate.describe(), tokens_per_s=speed, num_blocks=room)
