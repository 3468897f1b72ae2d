"""Plans for devices that are not installed here: composed profile, synthesised acceptance, and the search."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.plan import Acceptance
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.engines import engine_named
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef
from swiftspec.models.names import unknown
from swiftspec.models.published import NamedModel, known_model, model_names
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies import DraftKind
from swiftspec.progress import Progress
from swiftspec.timing.latency import Provenance

if TYPE_CHECKING:
    from swiftspec.acceptance.given import GivenAcceptance

NUM_PROMPTS = 16
NUM_NEW_TOKENS = 256
_LONG_PROMPT = 8192  # tokens: chats, questions and code edits, whose acceptance is published, are shorter
# Long outputs take longer to simulate, and need fewer prompts for as good a sample of text.
_LEAST_PROMPTS, _ENOUGH_TOKENS = 4, 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of a plan, and the source of its acceptance."""

    profile: Profile
    trace: AcceptanceTrace
    acceptance: Acceptance


def plan_for(
    deployment: Deployment,
    *,
    target: str,
    draft: str,
    trace: Path | None = None,
    dataset: str | None = None,
    acceptance: "GivenAcceptance | None" = None,
    options: SearchOptions,
    progress: Progress,
) -> Planned:
    """The plan for one pair of models. At most one of `trace`, `dataset` and `acceptance` gives the draft's acceptance.

    ValueError: one sentence naming field and value.
    """
    options.check(num_devices=deployment.all_devices)
    models = deployment.pair(target, draft)
    deployment = deployment.as_stored(*models)
    sizes = _sizes(options, deployment, models[0])
    check_acceptance(dataset, trace, acceptance)
    load = options.load
    if load is not None:
        shortest = min(models, key=lambda model: model.spec.max_position)
        load.check_context(shortest.spec.max_position, shortest.name)
    from swiftspec.planner.degrees import AllowedDegrees
    from swiftspec.planner.fleet.replica import with_workload
    from swiftspec.planner.plan import Hardware, make_plan
    from swiftspec.planner.recorded_routing import with_recorded_routing
    from swiftspec.planner.search.sensitivity import Changes
    from swiftspec.planner.under_load.load_curves import Means

    deployment = with_recorded_routing(deployment, models[0], trace)
    inputs = prepare(
        deployment,
        target=models[0],
        draft=models[1],
        trace=trace,
        dataset=dataset,
        given=acceptance,
        seed=options.seed,
        longest=load.workload.longest_request if load else 0,
        prompt_tokens=round(Means.of(load.workload).prompt_tokens) if load else None,
    )
    if load is not None:
        load = load.under(deployment.serving(*models))
    plan = make_plan(
        inputs.profile,
        inputs.trace,
        Hardware(
            num_devices=deployment.num_devices,
            draft_devices=deployment.draft_devices if deployment.draft_device else 0,
            memory=deployment.memory(*models),
            degrees=AllowedDegrees.of(deployment, *models, sizes=sizes, chains_only=load is not None),
            engine=engine_named(deployment.engine).name,
        ),
        replace(options, load=load),
        progress=progress,
        acceptance=inputs.acceptance,
        changes=Changes(
            at_context=lambda context: (
                deployment.profile(*models, max_context=context) if context <= _most_positions(*models) else None
            ),
            with_independent_routing=_independently_routed(inputs.profile, deployment, *models),
        ),
    )
    longest = load.workload.longest_request if load else deployment.context + _num_new_tokens(deployment)
    plan = plan.model_copy(
        update={
            "layout": str(deployment.layout or ""),
            "host_s": deployment.host_s,
            "engine_settings": dict(deployment.settings),
            "kv_dtype": deployment.kv_dtype if deployment.served_by else "",
            "longest_request": longest,
        }
    )
    return with_workload(Planned(plan=plan, profile=inputs.profile, trace=inputs.trace, trace_path=trace), load)


def _independently_routed(
    profile: Profile, deployment: Deployment, target: PlannedModel, draft: PlannedModel
) -> Callable[[], Profile] | None:
    """Source of the profile with experts chosen independently; None if the plan's own is that."""
    has_experts = any(isinstance(model.spec, SparseSpec) and model.spec.experts for model in (target, draft))
    if not has_experts or deployment.routing.correlation == 1:
        return None
    longest = max(step.context for step in profile.steps)
    return lambda: replace(deployment, expert_correlation=1.0).profile(target, draft, max_context=longest)


def _most_positions(target: PlannedModel, draft: PlannedModel) -> int:
    return min(target.spec.max_position, draft.spec.max_position)


def _sizes(options: SearchOptions, deployment: Deployment, target: PlannedModel) -> frozenset[int] | None:
    """Degrees to consider; any if None. ValueError if the target cannot be divided by any of them."""
    objections = {
        degree: target.spec.objection(degree) for degree in sorted(options.degrees or deployment.sizes or (1,))
    }
    if all(objections.values()):
        stated = ", ".join(map(str, objections))
        field, value = ("degrees", stated) if options.degrees else ("layout", str(deployment.layout))
        raise FieldError(field, value, f"of {target.name}, {next(iter(objections.values()))}")
    return deployment.sizes or options.degrees


def check_acceptance(dataset: str | None, trace: Path | None, given: "GivenAcceptance | None") -> None:
    """ValueError unless there is at most one source of acceptance."""
    from swiftspec.acceptance.proxy_pairs import dataset_names
    from swiftspec.acceptance.records import published_records
    from swiftspec.acceptance.texts import TextClass

    if given is not None and (dataset, trace) != (None, None):
        other = f"dataset {dataset}" if dataset else f"trace {trace}"
        raise FieldError("acceptance", given, f"that of {other} is known already")
    if dataset is None:
        return
    published = {record.dataset for record in published_records() if record.dataset}
    known = sorted({*dataset_names(), *published, *TextClass})
    if dataset not in known:
        raise unknown("dataset", dataset, known)
    if trace is not None:
        raise FieldError("dataset", dataset, f"acceptance is that of the trace {trace}")


def prepare(
    deployment: Deployment,
    *,
    target: PlannedModel,
    draft: PlannedModel,
    trace: Path | None = None,
    dataset: str | None = None,
    given: "GivenAcceptance | None" = None,
    seed: int = 0,
    longest: int = 0,
    prompt_tokens: int | None = None,
) -> Inputs:
    """Synthesise the trace unless one is given, and compose the profile, for contexts of `longest` tokens or more.

    prompt_tokens: mean of a load; those of the deployment if not given.
    """
    deployment = deployment.as_stored(target, draft)
    if trace is not None:
        recorded, acceptance = _given(trace, target, draft)
    else:
        _check_context(deployment.context, target, draft, num_tokens=_num_new_tokens(deployment))
        recorded, acceptance = _synthesised(deployment, target, draft, dataset=dataset, given=given, seed=seed)
    warnings = [acceptance.warning]
    if deployment.draft_kv_budget is not None:
        budget = deployment.draft_kv_budget
        warnings.append(f"that of a draft whose cache keeps every token, not {budget} (draft_kv_budget)")
    prompt_tokens = prompt_tokens or deployment.context
    if prompt_tokens > _LONG_PROMPT and acceptance.provenance not in (Provenance.MEASURED, Provenance.GIVEN):
        warnings.append(f"that of texts behind short prompts, while prompts have {prompt_tokens:,} tokens here")
    acceptance = acceptance.model_copy(update={"warning": "; ".join(filter(None, warnings))})
    longest = max(longest, *(prompt.prompt_length + len(prompt.target_tokens) for prompt in recorded.prompts))
    profile = deployment.profile(target, draft, max_context=longest)
    return Inputs(profile=profile, trace=recorded, acceptance=acceptance)


def _num_new_tokens(deployment: Deployment) -> int:
    return deployment.output_tokens or NUM_NEW_TOKENS


def _check_context(context: int, target: PlannedModel, draft: PlannedModel, *, num_tokens: int) -> None:
    most = _most_positions(target, draft)
    if context + num_tokens > most:
        shorter = min((target, draft), key=lambda model: model.spec.max_position)
        longer = _with_more_positions(shorter, context + num_tokens)
        raise FieldError(
            "context",
            context,
            f"with {num_tokens} output tokens that is more than the {most} positions of {shorter.name}"
            + (f"; {longer.name}, of the same size, has {longer.spec.max_position}" if longer else ""),
        )


def _with_more_positions(model: PlannedModel, wanted: int) -> NamedModel | None:
    """A registered model with this one's vocabulary and size and at least the wanted positions."""
    found = (known_model(name) for name in model_names() if known_model(name).vocabulary == model.vocabulary)
    size = (model.spec.num_layers, model.spec.hidden_size)
    of_size = (one for one in found if (one.spec.num_layers, one.spec.hidden_size) == size)
    return next((one for one in of_size if one.spec.max_position >= wanted), None)


def _given(path: Path, target: PlannedModel, draft: PlannedModel) -> tuple[AcceptanceTrace, Acceptance]:
    """Acceptance of a given trace: the pair's own is taken as recorded, another pair's is an assumption."""
    recorded = AcceptanceTrace.load(path)
    basis = f"{recorded.source} in {path.name}, of {recorded.target.model} with {recorded.draft.model}"
    same = (recorded.target.model, recorded.draft.model) == (target.name, draft.name)
    if not same:
        basis += f", which stand in for {target.name} with {draft.name}"
    measured = same and recorded.source == "recorded"
    return recorded, Acceptance(basis=basis, provenance=Provenance.MEASURED if measured else Provenance.ASSUMED)


def _synthesised(
    deployment: Deployment,
    target: PlannedModel,
    draft: PlannedModel,
    *,
    dataset: str | None,
    given: "GivenAcceptance | None",
    seed: int,
) -> tuple[AcceptanceTrace, Acceptance]:
    from swiftspec.acceptance.proxy_pairs import acceptance_for
    from swiftspec.acceptance.synthesis import synthesise, synthesise_positions

    make: Callable[..., AcceptanceTrace]
    if draft.kind is not DraftKind.SERIAL:
        from swiftspec.acceptance.usual import given_rates, published_rates

        drafter = draft.drafter if draft.directory and draft.drafter else draft.name
        by_position = given_rates(given) if given else published_rates(target.name, drafter, dataset, kind=draft.kind)
        make = partial(synthesise_positions, by_position.rates, kind=draft.kind)
        stated = Acceptance(basis=by_position.basis, provenance=by_position.provenance, spread=by_position.spread)
    elif given is not None:
        make = partial(synthesise, given.acceptance_model(field="acceptance"))
        stated = Acceptance(basis=given.describe(), provenance=Provenance.GIVEN)
    else:
        found = acceptance_for(target, draft, dataset)
        make = partial(synthesise, found.acceptance_model)
        stated = Acceptance(basis=found.basis, provenance=found.provenance, warning=found.warning)
    num_tokens = _num_new_tokens(deployment)
    trace = make(
        num_prompts=max(min(NUM_PROMPTS, _LEAST_PROMPTS), min(NUM_PROMPTS, _ENOUGH_TOKENS // num_tokens)),
        prompt_length=deployment.context,
        num_tokens=num_tokens,
        seed=seed,
        target=ModelRef(model=target.name, dtype=deployment.quant),
        draft=ModelRef(model=draft.name, dtype=deployment.draft_quant),
    )
    return trace, stated
