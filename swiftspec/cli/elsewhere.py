"""Planning for machines that are not at hand: a profile composed, acceptance synthesised, and the search over them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.latency import Provenance
from swiftspec.artifacts.plan import Acceptance, Basis, Goal, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli.basis import make_basis
from swiftspec.cli.console import Progress
from swiftspec.cli.hardware import Machine, PlannedModel, planned_pair
from swiftspec.cli.policies import check_policy
from swiftspec.files.writing import locate, write_output
from swiftspec.models import NamedModel, known_model, model_names
from swiftspec.models.names import unknown
from swiftspec.policies.effects import Role

if TYPE_CHECKING:
    from swiftspec.acceptance import GivenAcceptance

__all__ = ["Inputs", "Planned", "plan_elsewhere", "prepare", "search_elsewhere", "side_files"]

NUM_PROMPTS = 16
NUM_NEW_TOKENS = 256
# Long outputs need fewer prompts to be as good a sample of text, and take longer to simulate.
_LEAST_PROMPTS, _ENOUGH_TOKENS = 4, 16384
_PROFILE_SUFFIX, _TRACE_SUFFIX = ".profile.json", ".trace.npz"
_ANY_GOAL = Goal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a plan rests on; `files` are to be written beside it, once there is one."""

    profile: Profile
    profile_basis: Basis
    trace: AcceptanceTrace
    trace_basis: Basis
    acceptance: Acceptance
    files: Mapping[Path, bytes]

    def save(self) -> None:
        for path, content in self.files.items():
            write_output(path, content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan that is yet to be saved, with its inputs."""

    plan: Plan
    inputs: Inputs


def _unheard(*_: object) -> None:
    """Nobody waits for progress."""


def search_elsewhere(
    machine: Machine,
    *,
    target: str,
    draft: str,
    plan_path: Path,
    trace: Path | None = None,
    dataset: str | None = None,
    acceptance: "GivenAcceptance | None" = None,
    policy: str = "auto",
    goal: Goal = _ANY_GOAL,
    seed: int = 0,
    jobs: int = -1,
    backend: str | None = None,
    progress: Progress = _unheard,
    degrees: frozenset[int] | None = None,
) -> Plan:
    """The plan for a machine that is not at hand; profile and trace are saved beside `plan_path`. Prints nothing.

    From Python, and then `plan.save(plan_path)`; `swiftspec.cli.basis` reads profile and trace back.
    """
    planned = plan_elsewhere(
        machine,
        target=target,
        draft=draft,
        plan_path=plan_path,
        trace=trace,
        dataset=dataset,
        acceptance=acceptance,
        policy=policy,
        goal=goal,
        seed=seed,
        jobs=jobs,
        backend=backend,
        progress=progress,
        degrees=degrees,
    )
    planned.inputs.save()
    return planned.plan


def plan_elsewhere(
    machine: Machine,
    *,
    target: str,
    draft: str,
    plan_path: Path,
    trace: Path | None,
    dataset: str | None,
    acceptance: "GivenAcceptance | None",
    policy: str,
    goal: Goal,
    seed: int,
    jobs: int,
    backend: str | None,
    progress: Progress,
    degrees: frozenset[int] | None,
) -> Planned:
    """As `search_elsewhere`, with nothing saved. The files will be named after `plan_path`."""
    wanted = check_policy(policy, machine.num_devices)
    models = planned_pair(target, draft)
    _check_acceptance(dataset, trace, acceptance)
    from swiftspec.planner import AllowedDegrees, Changes, MemoryModel, Search, make_plan, warm_up

    if backend is None:
        warm_up(jobs)
    inputs = prepare(
        machine,
        target=models[0],
        draft=models[1],
        trace=trace,
        dataset=dataset,
        given=acceptance,
        seed=seed,
        out=plan_path,
    )
    specs = dict(zip(Role, (model.spec for model in models), strict=True))
    made = make_plan(
        profile=inputs.profile,
        profile_basis=inputs.profile_basis,
        trace=inputs.trace,
        trace_basis=inputs.trace_basis,
        num_devices=machine.num_devices,
        policy=wanted,
        seed=seed,
        num_jobs=jobs,
        progress=progress,
        goal=goal,
        search=Search.QUICK,
        memory=MemoryModel(
            device=machine.spec,
            specs=specs,
            quantisation=dict(zip(Role, (machine.quant, machine.draft_quant), strict=True)),
        ),
        changes=Changes(at_context=lambda context: _profile_for(context, machine, *models)),
        acceptance=inputs.acceptance,
        backend=backend,
        degrees=AllowedDegrees(sizes=degrees, engine=machine.serving_engine, specs=specs),
        engine=machine.engine,
    )
    return Planned(plan=made, inputs=inputs)


def _profile_for(context: int, machine: Machine, target: PlannedModel, draft: PlannedModel) -> Profile | None:
    """None where the models end before that."""
    if context > _most_positions(target, draft):
        return None
    return machine.profile(target, draft, max_context=context)


def _most_positions(target: PlannedModel, draft: PlannedModel) -> int:
    return min(target.spec.max_position, draft.spec.max_position)


def _check_acceptance(dataset: str | None, trace: Path | None, given: "GivenAcceptance | None") -> None:
    """One source of acceptance at most."""
    from swiftspec.acceptance import dataset_names

    if given is not None and (dataset, trace) != (None, None):
        other = f"--dataset {dataset}" if dataset else f"--trace {trace}"
        raise ValueError(f"--acceptance is {given}; with {other} acceptance is known already")
    if dataset is None:
        return
    if dataset not in dataset_names():
        raise unknown("--dataset", dataset, dataset_names())
    if trace is not None:
        raise ValueError(f"--dataset is {dataset}; with --trace acceptance is that of {trace}")


def prepare(
    machine: Machine,
    *,
    target: PlannedModel,
    draft: PlannedModel,
    trace: Path | None,
    dataset: str | None,
    seed: int,
    out: Path,
    given: "GivenAcceptance | None" = None,
) -> Inputs:
    """Synthesise the trace unless one is given, compose the profile, and name the files that `out` will rest on."""
    files: dict[Path, bytes] = {}
    beside = side_files(out, with_trace=trace is None)
    if not beside:
        out = Path("plan.json")  # where a plan written to a stream is taken to end
    if trace is not None:
        recorded, acceptance = _given(trace, target, draft)
        trace_basis = make_basis(trace, plan_path=out)
    else:
        _check_context(machine.context, target, draft, num_tokens=_num_new_tokens(machine))
        recorded, acceptance = _synthesised(machine, target, draft, dataset=dataset, given=given, seed=seed)
        trace_path = out.with_suffix(_TRACE_SUFFIX)
        files[trace_path] = recorded.to_bytes()
        trace_basis = make_basis(trace_path, plan_path=out, content=files[trace_path])
    longest = max(prompt.prompt_length + len(prompt.target_tokens) for prompt in recorded.prompts)
    profile = machine.profile(target, draft, max_context=longest)
    profile_path = out.with_suffix(_PROFILE_SUFFIX)
    files[profile_path] = profile.to_bytes()
    return Inputs(
        profile=profile,
        profile_basis=make_basis(profile_path, plan_path=out, content=files[profile_path]),
        trace=recorded,
        trace_basis=trace_basis,
        acceptance=acceptance,
        files=files if beside else {},
    )


def side_files(out: Path, *, with_trace: bool) -> dict[str, Path]:
    """Files that are written beside a plan, by what to call them; none beside a pipe or a device."""
    if locate(out).is_stream:
        return {}
    profile = {"the profile beside --out": out.with_suffix(_PROFILE_SUFFIX)}
    return profile | ({"the trace beside --out": out.with_suffix(_TRACE_SUFFIX)} if with_trace else {})


def _num_new_tokens(machine: Machine) -> int:
    return machine.output_tokens or NUM_NEW_TOKENS


def _check_context(context: int, target: PlannedModel, draft: PlannedModel, *, num_tokens: int) -> None:
    most = _most_positions(target, draft)
    if context + num_tokens > most:
        shorter = min((target, draft), key=lambda model: model.spec.max_position)
        longer = _with_more_positions(shorter, context + num_tokens)
        raise ValueError(
            f"--context is {context}; with {num_tokens} output tokens that is more than the {most} positions of "
            f"{shorter.name}" + (f"; {longer.name}, of the same size, has {longer.spec.max_position}" if longer else "")
        )


def _with_more_positions(model: PlannedModel, wanted: int) -> NamedModel | None:
    """A model of the registry with this one's vocabulary and size that has as many positions as are wanted."""
    found = (known_model(name) for name in model_names() if known_model(name).vocabulary == model.vocabulary)
    size = (model.spec.num_layers, model.spec.hidden_size)
    of_size = (one for one in found if (one.spec.num_layers, one.spec.hidden_size) == size)
    return next((one for one in of_size if one.spec.max_position >= wanted), None)


def _given(path: Path, target: PlannedModel, draft: PlannedModel) -> tuple[AcceptanceTrace, Acceptance]:
    """A trace of the pair itself is as good as it was made; that of another pair is an assumption."""
    recorded = AcceptanceTrace.load(path)
    basis = f"{recorded.source} in {path.name}, of {recorded.target.model} with {recorded.draft.model}"
    same = (recorded.target.model, recorded.draft.model) == (target.name, draft.name)
    if not same:
        basis += f", which stand in for {target.name} with {draft.name}"
    measured = same and recorded.source == "recorded"
    return recorded, Acceptance(basis=basis, provenance=Provenance.MEASURED if measured else Provenance.ASSUMED)


def _synthesised(
    machine: Machine,
    target: PlannedModel,
    draft: PlannedModel,
    *,
    dataset: str | None,
    given: "GivenAcceptance | None",
    seed: int,
) -> tuple[AcceptanceTrace, Acceptance]:
    from swiftspec.acceptance import acceptance_for, synthesise

    num_tokens = _num_new_tokens(machine)
    synthesised = partial(
        synthesise,
        num_prompts=max(min(NUM_PROMPTS, _LEAST_PROMPTS), min(NUM_PROMPTS, _ENOUGH_TOKENS // num_tokens)),
        prompt_length=machine.context,
        num_tokens=num_tokens,
        seed=seed,
        target=ModelRef(model=target.name, dtype=machine.quant),
        draft=ModelRef(model=draft.name, dtype=machine.draft_quant),
    )
    if given is not None:
        trace = synthesised(given.acceptance_model(field="--acceptance"))
        return trace, Acceptance(basis=given.describe(), provenance=Provenance.ASSUMED)
    found = acceptance_for(target, draft, dataset)
    trace = synthesised(found.acceptance_model)
    return trace, Acceptance(basis=found.basis, provenance=found.provenance, warning=found.warning)
