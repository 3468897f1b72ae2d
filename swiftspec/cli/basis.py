"""What a plan rests on: its own file, and the profile and trace it was computed from, held to their SHA-256."""

from hashlib import sha256
from pathlib import Path

from swiftspec.artifacts.document import ModelRef, file_sha256
from swiftspec.artifacts.plan import Basis, Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli.models import Pair
from swiftspec.models.spec import is_model_directory, model_directory

__all__ = ["candidate_of", "check_models", "files_of", "make_basis", "read_profile", "read_trace"]


def make_basis(path: Path, *, plan_path: Path, content: bytes | None = None) -> Basis:
    """A reference that survives moving the plan together with what lies beside or below it.

    content: what the file will hold, if it is yet to be written.
    """
    absolute, folder = path.resolve(), plan_path.resolve().parent
    stored = absolute.relative_to(folder) if absolute.is_relative_to(folder) else absolute
    return Basis(path=str(stored), sha256=file_sha256(path) if content is None else sha256(content).hexdigest())


def read_profile(plan: Plan, plan_path: Path) -> Profile:
    """The profile the plan was computed from. ValueError if it is gone or was changed since."""
    path = _checked(plan.profile, plan_path)
    profile = Profile.load(path)
    if profile.device != plan.device:
        raise ValueError(f"{path}: device is {profile.device!r}; {plan_path} is for {plan.device!r}")
    return profile


def read_trace(plan: Plan, plan_path: Path) -> AcceptanceTrace:
    """The trace the plan was computed from. ValueError if it is gone or was changed since."""
    return AcceptanceTrace.load(_checked(plan.trace, plan_path))


def files_of(plan: Plan, plan_path: Path) -> dict[str, Path | str]:
    """What a plan rests on, by what to call it: files and model directories, which no output may overwrite."""
    names = {"the plan's target": plan.target.model, "the plan's draft": plan.draft.model}
    folder = plan_path.resolve().parent
    files: dict[str, Path | str] = {
        "--plan": plan_path,
        "the plan's profile": folder / plan.profile.path,
        "the plan's trace": folder / plan.trace.path,
    }
    return files | {role: model_directory(name) for role, name in names.items() if is_model_directory(name)}


def candidate_of(plan: Plan, policy: str | None) -> Candidate:
    """The plan's choice, or its best candidate of the policy named. ValueError if it has none."""
    if policy is None:
        return plan.chosen
    if policy not in plan.candidates:
        raise ValueError(f"--policy is {policy!r}; the plan has {', '.join(plan.candidates)}")
    return plan.candidates[policy]


def check_models(pair: Pair, *, profile: Profile, profile_path: Path, trace: AcceptanceTrace, trace_path: Path) -> None:
    """ValueError unless profile and trace were made with these models.

    Latencies depend on inflation and dtype. Acceptance does not: an inflated target says the same, so a trace only
    has to be of the same models.
    """
    _check_model(profile_path, "target", profile.target, pair.target)
    _check_model(profile_path, "draft", profile.draft, pair.draft)
    for role, recorded, named in (("target", trace.target, pair.target), ("draft", trace.draft, pair.draft)):
        if recorded.model != named.model:
            raise ValueError(f"{trace_path}: {role} is {recorded.model}; --{role} is {named.model}")


def _check_model(path: Path, role: str, recorded: ModelRef, named: ModelRef) -> None:
    if recorded.model != named.model or recorded.inflate != named.inflate:
        raise ValueError(f"{path}: {role} is {recorded}; expected {named}, as --{role} and --inflate say")


def _checked(basis: Basis, plan_path: Path) -> Path:
    path = plan_path.resolve().parent / basis.path
    try:
        found = file_sha256(path)
    except ValueError as error:
        raise ValueError(f"{error}, but {plan_path} was computed from it") from error
    if found != basis.sha256:
        raise ValueError(
            f"{path}: SHA-256 is {found[:12]}...; {plan_path} was computed from a file with {basis.sha256[:12]}..."
        )
    return path
