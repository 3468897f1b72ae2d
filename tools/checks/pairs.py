"""Plans of a pair of models, made and measured on this machine. A stage whose file exists is not repeated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.report import Report
from swiftspec.cli import console

__all__ = ["Pair", "Texts", "measured", "run"]

_NEW_TOKENS = 96
_DEVICES = ("--devices", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Target and draft by name or directory, and the inflation of the target."""

    target: str
    draft: str
    inflate: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the models as they are."""
        return "--target", self.target, "--draft", self.draft

    @property
    def inflated(self) -> tuple[str, ...]:
        """And with the target inflated."""
        return *self.flags, "--inflate", self.inflate


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Files of prompts, and how many of the measured ones are used, how often."""

    traced: Path
    measured: Path
    num_measured: int
    repeats: int


def measured(
    folder: Path, pair: Pair, texts: Texts, *, dtype: Sequence[str] = (), policies: Sequence[str] = ()
) -> tuple[Report, Plan]:
    """Profile, trace, plan and validate, each in a process of its own.

    Parameters
    ----------
    folder : Path
        Of profile.json, trace.npz, plan.json and report.json.
    dtype, policies : sequence of str
        Options of `profile` and of `validate`; by default the device's dtype and all of the plan's policies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ("profile.json", "trace.npz", "plan.json", "report.json")
    profile, trace, plan, report = (folder / name for name in names)
    if not profile.exists():
        run("swiftspec", "profile", *pair.inflated, *dtype, "--device", "cpu", *_DEVICES, "--out", profile)
    if not trace.exists():
        profiled = Profile.load(profile)
        dtypes = ",".join(model.dtype for model in (profiled.target, profiled.draft))
        prompts = ("--prompts", texts.traced, "--max-new-tokens", str(_NEW_TOKENS))
        run("swiftspec", "trace", *pair.flags, "--dtype", dtypes, *prompts, "--out", trace)
    if not report.exists():
        run("swiftspec", "plan", *pair.inflated, "--profile", profile, "--trace", trace, *_DEVICES, "--out", plan)
        prompts = ("--prompts", texts.measured, "--num-prompts", str(texts.num_measured))
        chosen = ("--policies", ",".join(policies)) if policies else ()
        repeats = ("--repeats", str(texts.repeats))
        run("swiftspec", "validate", "--plan", plan, *prompts, *repeats, *chosen, "--json", report)
    return Report.load(report), Plan.load(plan)


def run(module: str, *arguments: str | Path) -> None:
    """Run a module's program. ValueError if it fails; it has said why."""
    command = [module, *map(str, arguments)]
    console.say(f"$ python -m {' '.join(command)}")
    if subprocess.run([sys.executable, "-m", *command], check=False).returncode:
        raise ValueError(f"{' '.join(command[:2])} failed; see above")
