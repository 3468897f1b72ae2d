"""`swiftspec plan`: the simulator's choice of policy, shape and split, and what it rests on."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from swiftspec import console
from swiftspec.acceptance import AcceptanceTrace
from swiftspec.commands.basis import check_models, make_basis, read_profile, read_trace
from swiftspec.commands.elsewhere import search_elsewhere, side_files
from swiftspec.commands.files import check_outputs, saved, write_json
from swiftspec.commands.hardware import Machine
from swiftspec.commands.models import resolve_pair
from swiftspec.commands.page import write_page
from swiftspec.commands.policies import check_policy
from swiftspec.commands.showing import show_plan
from swiftspec.plan import Goal, Objective, Plan
from swiftspec.profile import Profile

__all__ = ["make_goal", "parse_degrees", "plan", "search", "search_elsewhere"]

_ANY_GOAL = Goal()


def plan(
    *,
    target: str,
    draft: str,
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
        "--draft": draft,
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
    if machine is None:
        if dataset is not None:
            raise ValueError(f"--dataset is {dataset}; it needs --device, without which acceptance is that of --trace")
        made = search(
            target=target,
            draft=draft,
            inflate=inflate,
            dtype=dtype,
            profile=_needed("--profile", profile),
            trace=_needed("--trace", trace),
            devices=devices,
            ranks=ranks,
            **common,
        )
    else:
        _refuse({"--inflate": inflate, "--dtype": dtype, "--profile": profile, "--ranks": ranks})
        with console.progress("plan") as progress:
            made = search_elsewhere(
                machine, target=target, draft=draft, trace=trace, dataset=dataset, progress=progress, **common
            )
    made.save(out)
    show_plan(made)
    if machine is not None and not beside:
        console.note("The profile and trace of this plan are not saved: --out is no file that they could lie beside")
    if report is not None:
        write_page(report, made, profile=read_profile(made, out), trace=read_trace(made, out))
    console.say(f"\n{saved(out)}" + (f"; the report is {report}" if report else ""))
    write_json(json_path, {"plan": str(out)} | made.model_dump(mode="json"))
    return made


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


def make_goal(objective: str, *, max_tpot_ms: float | None, max_gpus: int | None, price_per_hour: float | None) -> Goal:
    """From flags. ValueError naming the flag."""
    for flag, value in (("--max-tpot-ms", max_tpot_ms), ("--price-per-hour", price_per_hour)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{flag} is {value}; expected a positive number")
    if objective == Objective.COST and price_per_hour is None:
        raise ValueError("--price-per-hour is missing; --objective cost needs what a device costs an hour")
    if objective != Objective.COST and price_per_hour is not None:
        raise ValueError(f"--price-per-hour is {price_per_hour}; it needs --objective cost, not {objective}")
    return Goal(
        objective=Objective(objective),
        max_tpot_s=None if max_tpot_ms is None else max_tpot_ms / 1e3,
        max_devices=max_gpus,
        price_per_hour=price_per_hour,
    )


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


def _refuse(given: Mapping[str, object]) -> None:
    for flag, value in given.items():
        if value is not None:
            raise ValueError(f"{flag} is {value}; with --device nothing is run or was measured here")


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
