"""A plan from a profile and a trace: feasible options, the best by simulation, and the choice's sensitivities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftspec.artifacts.candidate import candidate_costs
from swiftspec.artifacts.plan import Acceptance, Basis, Candidate, Goal, Objective, Plan
from swiftspec.artifacts.profile import Collective, Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.errors import FieldError
from swiftspec.files.document import Origin
from swiftspec.planner.degrees import ANY_DEGREES, AllowedDegrees
from swiftspec.planner.fleet.choice import FleetSearch
from swiftspec.planner.load_choice import LoadDecision, choose_for_load
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.backends import parallel_backend
from swiftspec.planner.search.decision import known_errors
from swiftspec.planner.search.evaluation import Evaluator
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.options import ALL, SearchOptions
from swiftspec.planner.search.searches import Searches
from swiftspec.planner.search.sensitivity import Changes, sensitivities
from swiftspec.planner.search.simulations import RankedOption, Simulations
from swiftspec.planner.search.space import feasible_options, longest_context
from swiftspec.policies import Layout, policy_classes
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import drafts_elsewhere
from swiftspec.policies.effects import Role
from swiftspec.progress import Progress

_UNSAVED = Basis(path="", sha256="")  # `Planned.save` names the files
_DRAFTS = f"{Role.DRAFT} forwards"
_SENSITIVITY = (6, 64)  # prompts, and output tokens of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Devices to plan for.

    draft_devices: further ones of another kind, for a draft alone. memory: without it everything fits. degrees: allowed
    TP degrees. engine: engine whose forwards the profile has, where they are composed; for the plan's readers.
    """

    num_devices: int
    draft_devices: int = 0
    memory: MemoryModel | None = None
    degrees: AllowedDegrees = ANY_DEGREES
    engine: str | None = None


def make_plan(
    profile: Profile,
    trace: AcceptanceTrace,
    hardware: Hardware,
    options: SearchOptions,
    *,
    progress: Progress,
    acceptance: Acceptance | None = None,
    changes: Changes | None = None,
) -> Plan:
    """The best policy, shape and placement, for one user or for a load, by simulation.

    options: of one policy, autoregressive decoding is the only alternative, to show the gain of speculation; no other
        one is simulated, and none appears in the sensitivities. For a load, the choice is the one with the highest
        goodput among the best for one request, and there are no sensitivities, which are those of one request; of a
        fleet, it is the replica that keeps the load's limits on the fewest devices.
    progress: called with (done, total, what), counted in options.
    acceptance: source of the trace's acceptance, where it was not recorded.
    changes: changed assumptions for the plan's sensitivities; None leaves them out.

    ValueError: if the engine does not accept drafts as the trace has it, nothing is feasible (the message has the
    reasons), or no simulated option meets the goal's limits (the message names the nearest one).
    """
    num_devices, memory = hardware.num_devices, hardware.memory
    load, fleet, num_jobs = options.load, options.fleet, options.num_jobs
    _check_sampling(trace, hardware.engine)
    policy = None if options.policy == ALL else options.policy
    goal = options.goal if load is None else options.goal.alone
    num_used = min(num_devices, goal.max_devices or num_devices, fleet or num_devices)
    feasible, rejected = feasible_options(
        profile,
        trace,
        num_devices=num_used,
        draft_devices=hardware.draft_devices,
        memory=memory,
        ranks=options.ranks,
        splits=goal.splits,
        degrees=hardware.degrees,
        policies=_searched(options.policy, asks_server=hardware.degrees.draft_server),
    )
    if not any(policy in (None, option.policy.name) for option in feasible):
        raise _nothing_feasible(policy, rejected, num_used, memory, longest_context(trace))
    most = num_used + hardware.draft_devices
    is_drafted = any(not option.policy.plain for option in feasible)
    acceptance = acceptance if is_drafted else None
    errors = known_errors(profile, acceptance, engine=hardware.engine)
    with parallel_backend(options.backend):
        evaluator = Evaluator(profile, trace, num_jobs=num_jobs, errors=errors.forwards)
        simulations = Simulations(evaluator=evaluator, trace=trace, goal=goal, seed=options.seed, report=progress)
        found = Searches(
            profile=profile,
            simulations=simulations,
            options=feasible,
            policy=policy,
            errors=errors,
            memory=memory,
            num_jobs=num_jobs,
        )
        decision = found.fewest(most) if goal.objective is Objective.DEVICES else found.fastest(most)
        ranking = found.ranking()
        rejected.update(found.rejected)
        chosen = RankedOption.of(decision.chosen, goal)
        loaded: LoadDecision | None = None
        if load is not None:
            loaded = choose_for_load(load, found) if fleet is None else FleetSearch(load, fleet, found).decide()
        rows = sensitivities(
            profile=profile,
            trace=trace,
            memory=memory,
            goal=goal,
            chosen=chosen,
            others=[ranked for ranked in ranking if _is_rival(ranked.option, chosen.option, policy, goal)],
            budget=simulations.sample(*_SENSITIVITY),
            num_jobs=num_jobs,
            errors=errors.forwards,
            degrees=hardware.degrees,
            changes=changes if load is None else None,
            is_drafted=is_drafted,
            num_devices=_most_devices(goal, chosen.option, most),
        )
    used = loaded.option if loaded else chosen.option

    def priced(candidate: Candidate) -> Candidate:
        """The candidate with the costs of its steps, if a control can use them."""
        if not candidate.build().elastic:
            return candidate
        return candidate.model_copy(update={"costs": candidate_costs(candidate, profile.latencies, trace)})

    speeds = None
    if loaded is not None:
        speeds = {name: 1 / under.metrics.e2el_s.mean for name, under in loaded.under_load.predictions.items()}
    best = loaded.chosen if loaded else decision.candidate(decision.chosen)
    others = loaded.alternatives if loaded else tuple(map(decision.candidate, decision.others))
    return Plan(
        origin=Origin.here(),
        device=profile.device,
        engine=hardware.engine,
        num_devices=num_devices,
        draft_device=profile.draft_profile.device if profile.draft_profile and hardware.draft_devices else "",
        draft_devices=hardware.draft_devices,
        target=profile.target,
        draft=profile.draft,
        profile=_UNSAVED,
        trace=_UNSAVED,
        max_new_tokens=simulations.longest,
        sampling=trace.sampling,
        chosen=priced(best),
        alternatives=tuple(map(priced, others)),
        ties=() if loaded else tuple(outcome.option.describe() for outcome in decision.ties),
        num_simulated=len(simulations.simulated),
        rejected=dict(rejected),
        goal=goal,
        gain=decision.gain(speeds),
        acceptance=acceptance,
        known_errors={name: error for name, error in errors.by_name.items() if is_drafted or name != _DRAFTS},
        quantisation=dict(memory.quantisation) if memory else {},
        collectives=_collectives(profile, used),
        memory=memory.groups(used, context=longest_context(trace)) if memory else (),
        explored=tuple(ranked.cell for ranked in ranking),
        sensitivities=rows,
        under_load=loaded.under_load if loaded else None,
        fleet=loaded.fleet if loaded else None,
        feature_bytes=profile.feature_bytes,
    )


def _searched(policy: str | None, *, asks_server: bool) -> set[str] | None:
    """Names of the policies to search; None is every one. Of an engine with a draft server, all that draft for it."""
    if policy == ALL:
        return None
    if policy is not None:
        return {policy, Autoregressive.name}
    return {each.name for each in policy_classes() if each.searched or (asks_server and drafts_elsewhere(each()))}


def _is_rival(option: Option, chosen: Option, policy: str | None, goal: Goal) -> bool:
    """Whether an option other than the chosen one could be chosen."""
    fits = option.num_devices <= _most_devices(goal, chosen, option.num_devices)
    return option.key != chosen.key and policy in (None, option.policy.name) and fits


def _most_devices(goal: Goal, chosen: Option, num_devices: int) -> int:
    """Devices that a plan may use; if the goal is few devices, those of the choice."""
    return chosen.num_devices if goal.objective is Objective.DEVICES else num_devices


def _check_sampling(trace: AcceptanceTrace, engine: str | None) -> None:
    """ValueError if a trace of sampled output is to plan an engine that accepts drafts by a rule of its own."""
    if not trace.sampling.is_greedy and engine not in (None, SWIFTSPEC.name):
        raise FieldError(
            "engine",
            engine,
            f"the trace's output was sampled ({trace.sampling}), and drafts guessed as this package's engine does: "
            f"expected {SWIFTSPEC.name}, or a trace of greedy output",
        )


def _nothing_feasible(
    policy: str | None, rejected: Mapping[str, int], num_devices: int, memory: MemoryModel | None, context: int
) -> ValueError:
    if memory is not None:
        widest = Option.placed(Autoregressive(), (memory.most_devices(num_devices),))
        if memory.deficit(widest, context=context) > 0:
            return ValueError(memory.too_big(widest, context=context, num_devices=num_devices))
    reasons = "; ".join(reason for reason in rejected if reason.startswith(policy or ""))
    return FieldError("policy", f"{policy or 'auto'}, but no option is feasible: {reasons}")


def _collectives(profile: Profile, option: Option) -> tuple[Collective, ...]:
    """Collectives of the roles that an option runs, at their degrees."""
    roles = {Role.TARGET} if option.policy.layout is Layout.TARGET_ONLY else set(Role)
    known: Sequence[Collective] = profile.collectives
    if option.policy.layout is Layout.DISAGGREGATED and profile.draft_profile is not None:
        of_draft = (each for each in profile.draft_profile.collectives if each.role is Role.DRAFT)
        known = [*(each for each in known if each.role is Role.TARGET), *of_draft]
    return tuple(
        collective
        for collective in known
        if collective.role in roles
        and collective.degree == option.degree(collective.role)
        and collective.ranks == option.num_ranks(collective.role)
    )
