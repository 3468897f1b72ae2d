"""`swiftspec plan`: the simulator's choice of policy, shape and split, and what it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from swiftspec.artifacts.pair import check_models, resolve_pair
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned, side_files
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.drafts import Draft, Drafts, best_draft, named_drafts, recorded_draft, show_drafts
from swiftspec.cli.outputs import check_outputs, saved, write_json
from swiftspec.cli.page import write_page
from swiftspec.cli.print_plan import show_plan
from swiftspec.devices import DEVICES
from swiftspec.planner.deployment import Deployment, PlannedModel, planned_pair
from swiftspec.planner.recorded_routing import with_routed_profile
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies.effects import Role

__all__ = ["experts_priced", "parse_degrees", "plan", "search"]

_ANY = SearchOptions()
_FEW_ROWS = 4
_NOT_HERE = "it cannot be given with --device, which plans without running or measuring anything here"
_RECORDED = "it needs --device; without that, acceptance comes from --trace"


def plan(
    *,
    target: str,
    drafts: Sequence[str],
    inflate: str | None,
    dtype: str | None,
    profile: Path | None,
    trace: Path | None,
    devices: int | None,
    out: Path,
    options: SearchOptions = _ANY,
    deployment: Deployment | None = None,
    dataset: str | None = None,
    acceptance: Sequence[str] = (),
    report: Path | None = None,
    json_path: Path | None = None,
) -> Plan:
    """Search, print and save: for the machine of a profile and a trace, or for a deployment on other hardware."""
    inputs: dict[str, Path | str | None] = {
        "--target": target,
        **{f"--draft {draft}": draft for draft in drafts},
        "--profile": profile,
        "--trace": trace,
        "--op-tables": deployment.op_tables if deployment else None,
        "--workload": options.load.path if options.load else None,
    }
    beside = side_files(
        out,
        with_profile=deployment is not None,
        with_trace=deployment is not None and trace is None,
        with_workload=options.fleet is not None,
    )
    check_outputs(inputs=inputs, beside=beside, out=out, report=report, json=json_path)
    if deployment is not None and report is not None and not beside:
        raise ValueError(
            f"--report is {report}; it needs an --out that is a file, so that profile and trace are saved, too"
        )
    each: Drafts = {}
    if deployment is None:
        _refuse({"--dataset": dataset, "--acceptance": ", ".join(acceptance) or None}, _RECORDED)
        recorded = _needed("--profile", profile)
        planned = search(
            target=target,
            draft=recorded_draft(drafts, options.policy, recorded),
            inflate=inflate,
            dtype=dtype,
            profile=recorded,
            trace=_needed("--trace", trace),
            devices=devices,
            options=options,
        )
    else:
        options.check(num_devices=deployment.num_devices)
        unused = {"--inflate": inflate, "--dtype": dtype, "--profile": profile, "--ranks": options.ranks}
        _refuse(unused, _NOT_HERE)
        named = named_drafts(target, drafts, acceptance, options.policy)
        _note_names(target, named)
        each = _plan_each(deployment, named, target=target, trace=trace, dataset=dataset, options=options)
        planned = best_draft(each)
    made = planned.save(out)
    if len(each) > 1:
        show_drafts(each)
    show_plan(made)
    if (priced := experts_priced(planned)) is not None:
        console.paragraph(priced)
    if deployment is not None and not beside:
        console.note("The profile and trace of this plan are not saved, because --out is not a file")
    if report is not None:
        write_page(report, replace(planned, plan=made))
    console.say(f"\n{saved(out)}" + (f"; the report is {report}" if report else ""))
    write_json(json_path, _content(made, out, each))
    return made


def _plan_each(
    deployment: Deployment,
    drafts: Sequence[Draft],
    *,
    target: str,
    trace: Path | None,
    dataset: str | None,
    options: SearchOptions,
) -> Drafts:
    """A plan for each draft; if several are named, one that cannot be planned is listed with the others."""
    from swiftspec.planner.for_device import plan_for

    found: dict[str, Planned | ValueError] = {}
    for draft in drafts:
        planned_pair(target, draft.name, expert_parallel=deployment.expert_parallel)
    for draft in drafts:
        with console.progress(f"plan with {draft.name}" if len(drafts) > 1 else "plan") as progress:
            try:
                found[draft.name] = plan_for(
                    deployment,
                    target=target,
                    draft=draft.name,
                    trace=trace,
                    dataset=dataset,
                    acceptance=draft.acceptance,
                    options=options,
                    progress=progress,
                )
            except ValueError as error:
                if len(drafts) == 1:
                    raise
                found[draft.name] = error
    return found


def _note_names(target: str, drafts: Sequence[Draft]) -> None:
    """Print the full names that short names stand for."""
    found = PlannedModel.of(Role.TARGET, target)
    named = [(Role.TARGET, target, found), *((Role.DRAFT, draft.name, found.draft(draft.name)) for draft in drafts)]
    for role, name, planned in named:
        if planned.directory is None and planned.name != name:
            console.note(f"--{role} {name} is taken to mean {planned.name}")


def _content(made: Plan, out: Path, each: Drafts) -> dict[str, Any]:
    """For --json: the plan, what it costs, and the plans with other drafts."""
    content = {"plan": str(out), "cost_per_million_tokens": made.cost_per_million_tokens} | made.model_dump(mode="json")
    if len(each) > 1:
        content["drafts"] = {
            name: {"error": str(found)} if isinstance(found, ValueError) else found.plan.model_dump(mode="json")
            for name, found in each.items()
        }
    return content


def parse_degrees(text: str | None) -> frozenset[int] | None:
    """From `1,2,4,8`. ValueError naming the flag."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"--degrees is {text!r}; expected positive numbers separated by commas, such as 1,2,4,8")
    return frozenset(map(int, parts))


def _needed(flag: str, path: Path | None) -> Path:
    if path is None:
        raise ValueError(f"{flag} is missing; a plan for this machine needs it, one for other hardware needs --device")
    return path


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
    devices: int | None,
    options: SearchOptions,
) -> Planned:
    """The plan for the machine of a profile, and by default for all of its devices."""
    latencies = Profile.load(profile)
    num_devices = devices or latencies.num_devices
    options.check(num_devices=num_devices)
    recorded = AcceptanceTrace.load(trace)
    _check_same_machine(latencies, profile)
    pair = resolve_pair(
        target=target, draft=draft, inflate=inflate, dtype=dtype or latencies.target.dtype, device=latencies.device
    )
    check_models(pair, profile=latencies, profile_path=profile, trace=recorded, trace_path=trace)
    from swiftspec.planner.recorded import plan_recorded

    with console.progress("plan") as progress:
        return plan_recorded(
            latencies,
            recorded,
            num_devices=num_devices,
            options=options,
            progress=progress,
            profile_path=profile,
            trace_path=trace,
        )


def experts_priced(planned: Planned) -> str | None:
    """Experts that verifications of a sparse target are priced at, in a sentence; None where they are as profiled."""
    before, after = (each.profile.experts_touched for each in (planned, with_routed_profile(planned)))
    if before is None or after is None or before == after:
        return None
    profiled, traced = before.by_rows(), after.by_rows()
    shown = ", ".join(f"{traced[rows]:.2f} for {rows}" for rows in traced if rows > 1)
    few = min(traced, key=lambda rows: abs(rows - _FEW_ROWS))
    return (
        f"Verifications are priced at the experts that as many consecutive tokens of the traced texts touch: {shown} "
        f"rows. The profile's own touched {profiled[few]:.2f} for {few}"
    )


def _check_same_machine(profile: Profile, path: Path) -> None:
    """ValueError for a composed profile: its device is not in this machine."""
    if profile.device in DEVICES:
        raise ValueError(
            f"{path}: a profile of {profile.device}, which this machine is not; plan for it with --device "
            f"{profile.device}, without --profile"
        )
