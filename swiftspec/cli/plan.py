"""`swiftspec plan`: the simulator's choice of policy, shape and split, and what it rests on."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from swiftspec.artifacts.pair import check_models, resolve_pair
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import PROFILE_SUFFIX, TRACE_SUFFIX, WORKLOAD_SUFFIX, Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.drafts import Drafts, best_draft, compare_kinds, named_drafts, recorded_draft, show_drafts
from swiftspec.cli.outputs import check_files, draw, saved, write_json
from swiftspec.cli.plan_flags import compared_clients, deployment_of, draft_device_of, search_options
from swiftspec.cli.sections import show_plan
from swiftspec.cli.verbs.plans import PlanFlags
from swiftspec.devices import DEVICES
from swiftspec.devices.contention import BUSY_SHARE
from swiftspec.errors import FieldError
from swiftspec.files.writing import locate, write_output
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.recorded_routing import with_routed_profile
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import count, percent

_FEW_ROWS = 4
_NOT_HERE = "it cannot be given with --device, which plans without running or measuring anything here"
_NEEDED = "a plan for this machine needs it, one for other hardware needs --device"


def write_page(path: Path, planned: Planned) -> None:
    from swiftspec.reports.html import render
    from swiftspec.simulator.driver import typical_timeline

    planned = with_routed_profile(planned)
    page = render(planned.plan, profile=planned.profile, timeline=typical_timeline(planned))
    write_output(path, page.encode())


def plan(asked: PlanFlags) -> None:
    if asked.plan is not None:
        _report(asked, asked.plan)
    elif asked.target is None:
        raise ValueError("Missing option '--target'.")
    elif compared_clients(asked):
        compare_kinds(asked, asked.target)
    else:
        search(asked, asked.target)


def _report(asked: PlanFlags, plan: Path) -> None:
    """Write the report of a saved plan, and print where it is. ValueError without a place for it."""
    if asked.report is None:
        raise ValueError(f"--report is missing; --plan {plan} writes the report of that plan")
    check_files(asked)
    write_page(asked.report, Planned.load(plan))
    console.say(saved(asked.report))
    write_json(asked.json, {"plan": str(plan), "report": str(asked.report)})


def search(asked: PlanFlags, target: str) -> Plan:
    """Search, print and save: for the machine of a profile and a trace, or for a deployment on other hardware."""
    deployment, options = deployment_of(asked), search_options(asked)
    beside = _check_outputs(asked, deployment, options)
    each: Drafts = {}
    if deployment is None:
        planned = _plan_here(asked, target, options)
    else:
        each = _plan_elsewhere(asked, target, deployment, options)
        planned = best_draft(each)
    made = planned.plan if asked.out is None else planned.save(asked.out)
    if len(each) > 1:
        show_drafts(each)
    show_plan(made)
    if (priced := experts_priced(planned)) is not None:
        console.paragraph(priced)
    if (share := planned.profile.others_share or 0.0) > BUSY_SHARE:
        console.note(f"Other processes took {percent(share)} of the cores' time while the profile was measured")
    if asked.report is not None:
        write_page(asked.report, replace(planned, plan=made))
    draw(asked.plot, "heat_map", made)
    report = f"; the report is {asked.report}" if asked.report else ""
    if asked.out is None:
        console.note(f"This plan is not saved; --out FILE saves it{report}")
    else:
        if deployment is not None and not beside:
            console.note("The profile and trace of this plan are not saved, because --out is not a file")
        console.say(f"\n{saved(asked.out)}{report}")
    write_json(asked.json, _content(made, asked.out, each))
    return made


def _check_outputs(asked: PlanFlags, deployment: Deployment | None, options: SearchOptions) -> Mapping[str, Path]:
    """Files that are written beside the plan. ValueError for outputs that are wrong together."""
    beside, drafts_profile = {}, None
    if asked.draft_device is not None and asked.device is None:
        drafts_profile, _ = draft_device_of(asked.draft_device)
    if asked.out is not None:
        written = (
            ("profile", PROFILE_SUFFIX, deployment is not None or asked.draft_device is not None),
            ("trace", TRACE_SUFFIX, deployment is not None and asked.trace is None),
            ("workload", WORKLOAD_SUFFIX, options.fleet is not None),
        )
        beside = {
            f"the {name} next to --out": asked.out.with_suffix(suffix) for name, suffix, is_new in written if is_new
        }
        if beside and locate(asked.out).is_stream:
            beside = {}
    check_files(asked, inputs={"--draft-device": drafts_profile}, beside=beside)
    if deployment is not None and asked.report is not None and not beside:
        raise ValueError(
            f"--report is {asked.report}; it needs an --out that is a file, so that profile and trace are saved, too"
        )
    return beside


def _plan_elsewhere(asked: PlanFlags, target: str, deployment: Deployment, options: SearchOptions) -> Drafts:
    """A plan for each draft; if several are named, one that cannot be planned is listed with the others."""
    options.check(num_devices=deployment.all_devices)
    refuse(asked, ("inflate", "profile"), _NOT_HERE)
    if options.ranks is not None:
        raise FieldError("--set ranks", options.ranks, _NOT_HERE)
    drafts = named_drafts(target, asked.draft or (), asked.acceptance or (), options.policy)
    _note_names(target, drafts)
    from swiftspec.planner.for_device import plan_for

    found: dict[str, Planned | ValueError] = {}
    for draft in drafts:
        deployment.pair(target, draft)
    for draft, acceptance in drafts.items():
        with console.progress(f"plan with {draft}" if len(drafts) > 1 else "plan") as progress:
            try:
                found[draft] = plan_for(
                    deployment,
                    target=target,
                    draft=draft,
                    trace=asked.trace,
                    dataset=asked.dataset,
                    acceptance=acceptance,
                    options=options,
                    progress=progress,
                )
            except ValueError as error:
                if len(drafts) == 1:
                    raise
                found[draft] = error
    return found


def _note_names(target: str, drafts: Iterable[str]) -> None:
    """Print the full names that short names stand for."""
    found = PlannedModel.of(Role.TARGET, target)
    named = [(Role.TARGET, target, found), *((Role.DRAFT, draft, found.draft(draft)) for draft in drafts)]
    for role, name, planned in named:
        if planned.directory is None and planned.name != name:
            console.note(f"--{role} {name} is taken to mean {planned.name}")


def _content(made: Plan, out: Path | None, each: Drafts) -> dict[str, Any]:
    """For --json: the plan, what it costs, and the plans with other drafts."""
    content: dict[str, Any] = {
        "plan": None if out is None else str(out),
        "cost_per_million_tokens": made.cost_per_million_tokens,
    } | made.model_dump(mode="json")
    if len(each) > 1:
        content["drafts"] = {
            name: {"error": str(found)} if isinstance(found, ValueError) else found.plan.model_dump(mode="json")
            for name, found in each.items()
        }
    return content


def _plan_here(asked: PlanFlags, target: str, options: SearchOptions) -> Planned:
    """The plan for the machine of a profile, and by default for all of its devices."""
    refuse(asked, ("dataset", "acceptance"), "it needs --device; without that, acceptance comes from --trace")
    if (profile := asked.profile) is None:
        raise ValueError(f"--profile is missing; {_NEEDED}")
    draft = recorded_draft(asked.draft or (), options.policy, profile)
    if (trace := asked.trace) is None:
        raise ValueError(f"--trace is missing; {_NEEDED}")
    latencies = Profile.load(profile)
    num_devices = asked.devices or latencies.num_devices
    drafts_file, wanted = draft_device_of(asked.draft_device) if asked.draft_device else (None, 0)
    options.check(num_devices=num_devices + wanted)
    recorded = AcceptanceTrace.load(trace)
    if latencies.device in DEVICES:  # a composed profile
        raise ValueError(
            f"{profile}: a profile of {latencies.device}, which this machine is not; plan for it with --device "
            f"{latencies.device}, without --profile"
        )
    pair = resolve_pair(
        target=target,
        draft=draft,
        inflate=asked.inflate,
        dtype=asked.dtype or latencies.target.dtype,
        device=latencies.device,
    )
    check_models(pair, profile=latencies, profile_path=profile, trace=recorded, trace_path=trace)
    from swiftspec.planner.recorded import plan_recorded

    drafts = None
    if drafts_file is not None:
        drafts = Profile.load(drafts_file)
        if wanted > drafts.num_devices:
            there = count(drafts.num_devices, "device")
            raise ValueError(f"--draft-device is {asked.draft_device}; {drafts_file} is of {there}")
        drafts = drafts.model_copy(update={"num_devices": wanted})
    with console.progress("plan") as progress:
        return plan_recorded(
            latencies,
            recorded,
            drafts=drafts,
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
