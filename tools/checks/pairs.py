"""Plans of a pair of models, made and measured on this machine. A stage whose file exists is not repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import swiftspec
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.report import Report
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console

_NEW_TOKENS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Target and draft by name or directory, the inflation of the target, and the dtype of both."""

    target: str
    draft: str
    inflate: str
    dtype: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Files of prompts, and how many of the measured ones are used, how often."""

    traced: Path
    measured: Path
    num_measured: int
    repeats: int


def measured(folder: Path, pair: Pair, texts: Texts, *, policies: Sequence[str] | None = None) -> tuple[Report, Plan]:
    """Profile, trace, plan and validate on two cores; by default all of the plan's policies.

    folder: of profile.json, trace.npz, plan.json and report.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    profile, trace, plan, report = (folder / name for name in ("profile.json", "trace.npz", "plan.json", "report.json"))
    models = (pair.target, pair.draft)
    if not profile.exists():
        found = swiftspec.profile(
            *models, inflate=pair.inflate, dtype=pair.dtype, num_devices=2, stages=console.progress
        )
        found.save(profile)
    if not trace.exists():
        profiled = Profile.load(profile)
        dtypes = f"{profiled.target.dtype},{profiled.draft.dtype}"
        swiftspec.trace(*models, texts.traced, dtype=dtypes, max_new_tokens=_NEW_TOKENS, stages=console.progress).save(
            trace
        )
    if not plan.exists():
        swiftspec.plan(profile=Profile.load(profile), trace=AcceptanceTrace.load(trace), stages=console.progress).save(
            plan
        )
    if not report.exists():
        swiftspec.validate(
            Planned.load(plan),
            texts.measured,
            policies=policies,
            limit=texts.num_measured,
            repeats=texts.repeats,
            stages=console.progress,
        ).save(report)
    return Report.load(report), Plan.load(plan)
