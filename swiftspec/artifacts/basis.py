"""Profile and trace that a plan was computed from, checked against their SHA-256."""

from hashlib import sha256
from pathlib import Path

from swiftspec.artifacts.plan import Basis, Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.errors import FieldError
from swiftspec.files.document import file_sha256
from swiftspec.models.spec import is_model_directory, model_directory
from swiftspec.policies.conformance import field_types


def make_basis(path: Path, *, plan_path: Path, content: bytes | None = None) -> Basis:
    """A reference that survives moving the plan together with the files next to or below it.

    content: the file's future content, if it is yet to be written.
    """
    known = file_sha256(path) if content is None else sha256(content).hexdigest()
    return Basis(path=stored_path(path, plan_path=plan_path), sha256=known)


def stored_path(path: Path, *, plan_path: Path) -> str:
    """Path as a plan names it: relative for files next to or below it."""
    absolute, folder = path.resolve(), plan_path.resolve().parent
    return str(absolute.relative_to(folder) if absolute.is_relative_to(folder) else absolute)


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
    """Files and model directories that a plan depends on, by description; no output may overwrite them."""
    names = {"the plan's target": plan.target.model, "the plan's draft": plan.draft.model}
    files: dict[str, Path | str] = {
        "--plan": plan_path,
        "the plan's profile": path_of(plan.profile, plan_path),
        "the plan's trace": path_of(plan.trace, plan_path),
    }
    return files | {role: model_directory(name) for role, name in names.items() if is_model_directory(name)}


def candidate_of(plan: Plan, policy: str | None) -> Candidate:
    """The plan's choice, or its best candidate of the named policy. ValueError if it has none."""
    if policy is None:
        return plan.chosen
    if policy not in plan.candidates:
        raise FieldError("policy", repr(policy), f"the plan has {', '.join(plan.candidates)}")
    return plan.candidates[policy]


def searching(candidate: Candidate, earlier_outputs: int | None) -> Candidate:
    """The candidate, with so many earlier outputs to search; as it is if None. ValueError if its policy has no use."""
    if earlier_outputs is None:
        return candidate
    if "earlier_outputs" not in field_types(type(candidate.build())):
        raise FieldError(
            "earlier_outputs",
            earlier_outputs,
            f"{candidate.policy} searches none: expected the policy suffix_decoding or suffix_or_draft",
        )
    found = candidate.model_copy(update={"shape": {**candidate.shape, "earlier_outputs": earlier_outputs}})
    found.build()
    return found


def path_of(basis: Basis, plan_path: Path) -> Path:
    """Path of a file that a plan was computed from."""
    return plan_path.resolve().parent / basis.path


def _checked(basis: Basis, plan_path: Path) -> Path:
    path = path_of(basis, plan_path)
    try:
        found = file_sha256(path)
    except ValueError as error:
        raise ValueError(f"{error}, but {plan_path} was computed from it") from error
    if found != basis.sha256:
        raise ValueError(
            f"{path}: SHA-256 is {found[:12]}...; {plan_path} was computed from a file with {basis.sha256[:12]}..."
        )
    return path
