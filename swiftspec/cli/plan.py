"""`swiftspec plan`: the simulator's choice of policy, shape and split, and what it rests on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from swiftspec.artifacts.plan import Goal, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.basis import check_models, make_basis, read_profile, read_trace
from swiftspec.cli.drafts import Draft, Drafts, best_draft, named_drafts, recorded_draft, show_drafts
from swiftspec.cli.elsewhere import Planned, plan_elsewhere, side_files
from swiftspec.cli.hardware import Machine, PlannedModel, planned_pair
from swiftspec.cli.models import resolve_pair
from swiftspec.cli.outputs import check_outputs, saved, write_json
from swiftspec.cli.page import write_page
from swiftspec.cli.policies import check_policy
from swiftspec.cli.print_plan import show_plan
from swiftspec.devices import DEVICES
from swiftspec.policies.effects import Role

__all__ = ["parse_degrees", "plan", "search"]

_ANY_GOAL = Goal()
_NOT_HERE = "with --device nothing is run or was measured here"
_RECORDED = "it needs --device, without which acceptance is that of --trace"


def plan(
    *,
    target: str,
    drafts: Sequence[str],
    inflate: str | None,
    dtype: str | None,
    profile: Path | None,
    trace: Path | None,
    devices: int,
    policy: str,
    seed: int,
    jobs: int,
    out: Path,
    machine: Machine | None = None,
    dataset: str | None = None,
    acceptance: Sequence[str] = (),
    goal: Goal = _ANY_GOAL,
    backend: str | None = None,
    report: Path | None = None,
    json_path: Path | None = None,
    ranks: int | None = None,
    degrees: frozenset[int] | None = None,
) -> Plan:
    """Search, print and save: for the machine that profile and trace were recorded on, or for a `machine` elsewhere."""
    inputs: dict[str, Path | str | None] = {
        "--target": target,
        **{f"--draft {draft}": draft for draft in drafts},
        "--profile": profile,
        "--trace": trace,
        "--op-tables": machine.op_tables if machine else None,
    }
    beside = {} if machine is None else side_files(out, with_trace=trace is None)
    check_outputs(inputs=inputs, beside=beside, out=out, report=report, json=json_path)
    if machine is not None and report is not None and not beside:
        raise ValueError(f"--report is {report}; it needs an --out that is a file, with profile and trace beside it")
    _check_simulating(jobs, backend)
    common: Common = {
        "policy": policy,
        "goal": goal,
        "seed": seed,
        "jobs": jobs,
        "backend": backend,
        "plan_path": out,
        "degrees": degrees,
    }
    each: Drafts = {}
    if machine is None:
        _refuse({"--dataset": dataset, "--acceptance": ", ".join(acceptance) or None}, _RECORDED)
        recorded = _needed("--profile", profile)
        made = search(
            target=target,
            draft=recorded_draft(drafts, policy, recorded),
            inflate=inflate,
            dtype=dtype,
            profile=recorded,
            trace=_needed("--trace", trace),
            devices=devices,
            ranks=ranks,
            **common,
        )
    else:
        _refuse({"--inflate": inflate, "--dtype": dtype, "--profile": profile, "--ranks": ranks}, _NOT_HERE)
        named = named_drafts(target, drafts, acceptance, policy)
        _note_names(target, named)
        each = _plan_each(machine, named, target=target, trace=trace, dataset=dataset, common=common)
        best = best_draft(each)
        best.inputs.save()
        made = best.plan
    made.save(out)
    if len(each) > 1:
        show_drafts(each)
    show_plan(made)
    if machine is not None and not beside:
        console.note("The profile and trace of this plan are not saved: --out is no file that they could lie beside")
    if report is not None:
        write_page(report, made, profile=read_profile(made, out), trace=read_trace(made, out))
    console.say(f"\n{saved(out)}" + (f"; the report is {report}" if report else ""))
    write_json(json_path, _content(made, out, each))
    return made


def _plan_each(
    machine: Machine, drafts: Sequence[Draft], *, target: str, trace: Path | None, dataset: str | None, common: "Common"
) -> Drafts:
    """A plan for each draft; where several are named, one that cannot be planned is told with the others."""
    found: dict[str, Planned | ValueError] = {}
    for draft in drafts:
        planned_pair(target, draft.name)
    for draft in drafts:
        with console.progress(f"plan with {draft.name}" if len(drafts) > 1 else "plan") as progress:
            try:
                found[draft.name] = plan_elsewhere(
                    machine,
                    target=target,
                    draft=draft.name,
                    trace=trace,
                    dataset=dataset,
                    acceptance=draft.acceptance,
                    progress=progress,
                    **common,
                )
            except ValueError as error:
                if len(drafts) == 1:
                    raise
                found[draft.name] = error
    return found


def _note_names(target: str, drafts: Sequence[Draft]) -> None:
    """What short names were taken for."""
    for role, name in ((Role.TARGET, target), *((Role.DRAFT, draft.name) for draft in drafts)):
        planned = PlannedModel.of(role, name)
        if planned.directory is None and planned.name != name:
            console.note(f"--{role} {name} is taken for {planned.name}")


def _content(made: Plan, out: Path, each: Drafts) -> dict[str, Any]:
    """For --json: the plan, what it costs, and the plans with other drafts."""
    content = {"plan": str(out), "cost_per_million_tokens": made.cost_per_million_tokens} | made.model_dump(mode="json")
    if len(each) > 1:
        content["drafts"] = {
            name: {"error": str(found)} if isinstance(found, ValueError) else found.plan.model_dump(mode="json")
            for name, found in each.items()
        }
    return content


class Common(TypedDict):
    """What any search is told."""

    policy: str
    goal: Goal
    seed: int
    jobs: int
    backend: str | None
    plan_path: Path
    degrees: frozenset[int] | None


def parse_degrees(text: str | None) -> frozenset[int] | None:
    """From `1,2,4,8`. ValueError naming the flag."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"--degrees is {text!r}; expected positive numbers with commas between, as 1,2,4,8")
    return frozenset(map(int, parts))


def _needed(flag: str, path: Path | None) -> Path:
    if path is None:
        raise ValueError(f"{flag} is missing; a plan for this machine needs it, one for another machine needs --device")
    return path


def _check_simulating(jobs: int, backend: str | None) -> None:
    from swiftspec.planner.backends import check_backend

    if jobs < 1 and jobs != -1:
        raise ValueError(f"--jobs is {jobs}; expected at least 1, or -1 for one per core")
    if backend is not None:
        check_backend(backend, field="--backend")


def _refuse(given: Mapping[str, object], reason: str) -> None:
    for flag, value in given.items():
        if value is not None:
            raise ValueError(f"{flag} is {value}; {reason}")


def search(
    *,
    target: str,
    draft: str,
    inflate: str | None,
    dtype: str | None,
    profile: Path,
    trace: Path,
    devices: int,
    policy: str,
    seed: int,
    jobs: int,
    plan_path: Path,
    goal: Goal = _ANY_GOAL,
    backend: str | None = None,
    ranks: int | None = None,
    degrees: frozenset[int] | None = None,
) -> Plan:
    """The plan for the machine of a profile, as it would be saved at `plan_path`."""
    wanted = check_policy(policy, devices)
    latencies, recorded = Profile.load(profile), AcceptanceTrace.load(trace)
    _check_same_machine(latencies, profile)
    dtype = dtype or latencies.target.dtype
    pair = resolve_pair(target=target, draft=draft, inflate=inflate, dtype=dtype, device=latencies.device)
    check_models(pair, profile=latencies, profile_path=profile, trace=recorded, trace_path=trace)
    from swiftspec.planner import AllowedDegrees, make_plan

    with console.progress("plan") as progress:
        return make_plan(
            profile=latencies,
            profile_basis=make_basis(profile, plan_path=plan_path),
            trace=recorded,
            trace_basis=make_basis(trace, plan_path=plan_path),
            num_devices=devices,
            policy=wanted,
            seed=seed,
            num_jobs=jobs,
            progress=progress,
            goal=goal,
            backend=backend,
            ranks=ranks,
            degrees=AllowedDegrees(sizes=degrees),
        )


def _check_same_machine(profile: Profile, path: Path) -> None:
    """ValueError for one that was composed: what it is of cannot be run here."""
    if profile.device in DEVICES:
        raise ValueError(
            f"{path}: a profile of {profile.device}, which this machine is not; plan for it with --device "
            f"{profile.device}, without --profile"
        )
