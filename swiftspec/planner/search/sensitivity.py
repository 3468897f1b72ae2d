"""Sensitivity of the choice: the choice and the best others on a few prompts, with one assumption changed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import joblib
import numpy as np

from swiftspec.artifacts.plan import Goal, Sensitivity
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace, Guesses, TracedPrompt
from swiftspec.planner.degrees import ANY_DEGREES, AllowedDegrees
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.backends import run_parallel
from swiftspec.planner.search.decision import MOST_GIVEN_UP
from swiftspec.planner.search.evaluation import Budget, Evaluator, Outcome
from swiftspec.planner.search.option import Key, Option
from swiftspec.planner.search.simulations import RankedOption
from swiftspec.planner.search.space import longest_context
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.simulator.forward_errors import EXACT, ForwardErrors
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase

_ACCEPTANCE, _DRAFT_FORWARDS = "acceptance", "draft forwards"
_ALL_REDUCE = "all_reduce"  # name prefix of the parts of collectives that grow
_NO_TOKEN = np.iinfo(np.int32).max  # an id that no token has
_MOST_OTHERS = 3
_WEAKER = 0.1  # share by which acceptance falls


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Sizes of changes, and the sources of profiles under them.

    slower: share by which all-reduces, or draft forwards, grow.
    longer: factor of the prompts' lengths.
    at_context: the profile for requests of a given length, where the plan's own ends before; None where the models end,
        too.
    with_independent_routing: the plan's profile, but with experts of consecutive tokens chosen independently, so that
        more of them are read.
    """

    slower: float = 0.2
    longer: int = 4
    at_context: Callable[[int], Profile | None] | None = None
    with_independent_routing: Callable[[], Profile] | None = None


class _Entry(NamedTuple):
    """An option to simulate, and the plan's option that it stands for: itself, except for a wider one."""

    option: Option
    planned: RankedOption


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scenario:
    change: str
    latencies: Latencies
    trace: AcceptanceTrace
    entries: Sequence[_Entry]


def sensitivities(
    *,
    profile: Profile,
    trace: AcceptanceTrace,
    memory: MemoryModel | None,
    goal: Goal,
    chosen: RankedOption,
    others: Sequence[RankedOption],
    budget: Budget,
    num_jobs: int,
    changes: Changes | None,
    num_devices: int,
    is_drafted: bool = True,
    errors: ForwardErrors = EXACT,
    degrees: AllowedDegrees = ANY_DEGREES,
) -> tuple[Sensitivity, ...]:
    """Rows of the table: acceptance, all-reduce, draft, context, another device; without those that have no inputs.

    changes: None for no rows.
    chosen, others: the plan's choice and the other simulated options; the best few of these are compared with it.
    budget: what is simulated of each, with common random numbers.
    num_devices: number of devices of the plan.
    is_drafted: whether any option drafts; acceptance and drafts change nothing otherwise.
    errors: errors that both the plan's figures and these are averaged over.
    degrees: groups allowed on one more device.
    """
    if changes is None:
        return ()
    best = sorted(others, key=lambda ranked: -ranked.score)[:_MOST_OTHERS]
    entries = [_Entry(ranked.option, ranked) for ranked in (chosen, *best)]
    planned = _Scenario(change="", latencies=profile.latencies, trace=trace, entries=entries)
    changed = _scenarios(planned, changes, memory, num_devices, degrees)
    fixed = () if is_drafted else (_ACCEPTANCE, _DRAFT_FORWARDS)
    scenarios = [planned, *(each for each in changed if not each.change.startswith(fixed))]
    before, *after = _simulated(scenarios, budget, num_jobs, errors)
    of_plan = {outcome.option.key: outcome for outcome in before}
    return tuple(
        _row(scenario, outcomes, of_plan, chosen, goal) for scenario, outcomes in zip(scenarios[1:], after, strict=True)
    )


def _simulated(
    scenarios: Sequence[_Scenario], budget: Budget, num_jobs: int, errors: ForwardErrors
) -> list[list[Outcome]]:
    """Outcomes of each scenario's entries. All are one queue, so that no core waits between scenarios."""
    evaluators = [Evaluator(each.latencies, each.trace, num_jobs=num_jobs, errors=errors) for each in scenarios]
    tasks = [(number, entry) for number, each in enumerate(scenarios) for entry in each.entries]
    calls = (joblib.delayed(evaluators[number])((entry.option, budget)) for number, entry in tasks)
    outcomes = iter(list(run_parallel(calls, num_jobs)))
    return [list(islice(outcomes, len(each.entries))) for each in scenarios]


def _row(
    scenario: _Scenario, outcomes: Sequence[Outcome], of_plan: Mapping[Key, Outcome], chosen: RankedOption, goal: Goal
) -> Sensitivity:
    """The plan's figures, scaled by the change seen on a few prompts, and whether another option is the best then."""
    forecasts = []
    for (option, planned), after in zip(scenario.entries, outcomes, strict=True):
        before = of_plan[planned.option.key]
        speed = planned.tokens_per_s * after.tokens_per_s / before.tokens_per_s
        score = planned.score * after.score(goal) / before.score(goal)
        forecasts.append(planned._replace(option=option, tokens_per_s=speed, score=score))
    own = [forecast for forecast in forecasts if forecast.option.key == chosen.option.key]
    best = max(forecasts, key=lambda forecast: forecast.score)
    beaten = not own or best.score > own[0].score * (1 + MOST_GIVEN_UP)
    stays = own[0] if own and not beaten else best
    return Sensitivity(
        change=scenario.change,
        tokens_per_s=own[0].tokens_per_s if own else 0.0,
        best=stays.option.describe(),
        best_tokens_per_s=stays.tokens_per_s,
        changes_choice=beaten,
    )


def _scenarios(
    planned: _Scenario, changes: Changes, memory: MemoryModel | None, num_devices: int, degrees: AllowedDegrees
) -> Iterator[_Scenario]:
    slower = f"+{changes.slower * 100:.0f} %"
    latencies, factor = planned.latencies, 1 + changes.slower
    weaker = weakened(planned.trace, _WEAKER, seed=0)
    yield replace(planned, change=f"{_ACCEPTANCE} -{_WEAKER * 100:.0f} %", trace=weaker)
    if any(name.startswith(_ALL_REDUCE) for grid in latencies.steps.values() for name in grid.part_names):
        reduced = latencies.changed(
            lambda _, grid: grid.stretched(lambda name: factor if name.startswith(_ALL_REDUCE) else 1.0)
        )
        yield replace(planned, change=f"all-reduce {slower}", latencies=reduced)
    drafted = latencies.changed(lambda table, grid: grid.scaled(factor) if table.role is Role.DRAFT else grid)
    yield replace(planned, change=f"{_DRAFT_FORWARDS} {slower}", latencies=drafted)
    if changes.with_independent_routing is not None:
        independent = changes.with_independent_routing().latencies
        yield replace(planned, change="experts chosen independently", latencies=independent)
    yield from _longer(planned, changes, memory)
    wider = [entry for planned_entry in planned.entries for entry in _wider(planned_entry, latencies, num_devices)]
    if wider := [entry for entry in wider if degrees.objection(entry.option) is None]:
        yield replace(planned, change="another device", entries=[planned.entries[0], *wider])


def _longer(planned: _Scenario, changes: Changes, memory: MemoryModel | None) -> Iterator[_Scenario]:
    """Prompts several times as long, if the profile, or another one, has their latencies."""
    trace = lengthened(planned.trace, changes.longer)
    context = longest_context(trace)
    latencies = planned.latencies
    if changes.at_context is not None:
        if (profile := changes.at_context(context)) is None:
            return
        latencies = profile.latencies
    elif context > max(length for grid in latencies.steps.values() for _, length in grid.grid):
        return
    entries = [
        entry for entry in planned.entries if memory is None or memory.deficit(entry.option, context=context) <= 0
    ]
    if entries:
        change = f"prompts {changes.longer} x as long"
        yield replace(planned, change=change, latencies=latencies, trace=trace, entries=entries)


def _wider(entry: _Entry, latencies: Latencies, num_devices: int) -> Iterator[_Entry]:
    """The same shape with one device more than are available, at either role."""
    option, sizes = entry.option, entry.option.sizes
    for group in range(len(sizes)):
        grown = tuple(size + (number == group) for number, size in enumerate(sizes))
        if sum(grown) != num_devices + 1 or grown[0] % option.policy.target_groups:
            continue
        wider = Option.placed(option.policy, grown)
        roles = [Role.TARGET] if option.policy.layout is Layout.TARGET_ONLY else list(Role)
        if all(wider.degree(role) in latencies.degrees(Phase.PREFILL, role=role) for role in roles):
            yield _Entry(wider, entry.planned)


def weakened(trace: AcceptanceTrace, share: float, *, seed: int) -> AcceptanceTrace:
    """The same trace with the target's token missing from the candidates at a share of the positions, drawn at random.

    Every rank's acceptance falls by that share, for every guesser.
    """
    prompts = (_without(prompt, share, np.random.default_rng([seed, n])) for n, prompt in enumerate(trace.prompts))
    return replace(trace, prompts=tuple(prompts))


def _without(prompt: TracedPrompt, share: float, rng: np.random.Generator) -> TracedPrompt:
    missed = rng.random(len(prompt.target_tokens)) < share

    def without(guesses: Guesses) -> Guesses:
        tokens, logprobs = guesses
        by_output = (-1, *[1] * (tokens.ndim - 1))
        right = missed.reshape(by_output) & (tokens == prompt.target_tokens.reshape(by_output))
        return Guesses(np.where(right, _NO_TOKEN, tokens), logprobs)

    guesses = {guesser: without(found) for guesser, found in prompt.guesses.items()}
    ranks = np.where(missed, np.maximum(prompt.ranks, prompt.draft.num_candidates), prompt.ranks)
    ahead = None if prompt.ahead is None else without(prompt.ahead)
    return replace(prompt, guesses=guesses, ranks=ranks, ahead=ahead)


def lengthened(trace: AcceptanceTrace, times: int) -> AcceptanceTrace:
    """The same outputs after prompts several times as long."""
    prompts = (replace(prompt, prompt_tokens=np.tile(prompt.prompt_tokens, times)) for prompt in trace.prompts)
    return replace(trace, prompts=tuple(prompts))
