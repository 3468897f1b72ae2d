"""Planned: a plan together with the profile and trace that it names, checked against their SHA-256."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from swiftspec.artifacts.plan import Basis, Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import Workload
from swiftspec.errors import FieldError
from swiftspec.files.document import file_sha256
from swiftspec.files.writing import locate, write_output
from swiftspec.models.spec import is_model_directory, model_directory
from swiftspec.policies.registry import field_types

PROFILE_SUFFIX, TRACE_SUFFIX, WORKLOAD_SUFFIX = ".profile.json", ".trace.npz", ".workload.json"
_UNNAMED = Path("plan.json")  # assumed path of a plan that is written to a stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with the profile and the trace that it was computed from; what `plan` returns.

    Parameters
    ----------
    plan : Plan
    profile : Profile
    trace : AcceptanceTrace
    profile_path, trace_path : Path, optional
        Files of the two; not given if they were just composed or measured.
    workload : Workload, optional
        The load that the plan was made for, if it is not a file yet; of a fleet a replica's share.
    workload_path : Path, optional
        Its file.

    Examples
    --------
    >>> planned = swiftspec.Planned.load("plan.json")
    >>> print(planned)
    swiftspec ... on cpu: ... tokens/s predicted
    """

    plan: Plan
    profile: Profile
    trace: AcceptanceTrace
    profile_path: Path | None = None
    trace_path: Path | None = None
    workload: Workload | None = None
    workload_path: Path | None = None

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a plan, and the profile and trace that it names.

        ValueError if a file cannot be read, or its SHA-256 is not that of the file the plan was computed from.
        """
        path = Path(path)
        return cls.of(Plan.load(path), path)

    @classmethod
    def of(cls, plan: Plan, path: Path) -> Self:
        """A plan that was read from `path`, with its profile and trace. Raises as `load`."""
        return cls(
            plan=plan,
            profile=read_profile(plan, path),
            trace=read_trace(plan, path),
            profile_path=path_of(plan.profile, path),
            trace_path=path_of(plan.trace, path),
            workload_path=path_of(plan.under_load.workload, path) if plan.under_load else None,
        )

    def __str__(self) -> str:
        chosen = self.plan.chosen
        return f"{chosen.describe()} on {self.plan.device}: {chosen.tokens_per_s:.1f} tokens/s predicted"

    def placed(self, path: Path) -> tuple[Plan, Mapping[Path, bytes]]:
        """The plan as saved at `path`, and the files to be written next to it; none next to a stream."""
        is_stream = locate(path).is_stream
        path = _UNNAMED if is_stream else path
        files: dict[Path, bytes] = {}

        def placed(known: Path | None, content: Profile | AcceptanceTrace | Workload | None, suffix: str) -> Path:
            """The file of this content, to be written if it is not known."""
            if known is not None:
                return known
            assert content is not None, "a plan made for a load knows it"
            files[path.with_suffix(suffix)] = content.to_bytes()
            return path.with_suffix(suffix)

        def basis(file: Path) -> Basis:
            known = sha256(files[file]).hexdigest() if file in files else file_sha256(file)
            return Basis(path=_stored_path(file, path), sha256=known)

        changes: dict[str, object] = {
            "profile": basis(placed(self.profile_path, self.profile, PROFILE_SUFFIX)),
            "trace": basis(placed(self.trace_path, self.trace, TRACE_SUFFIX)),
        }
        if (load := self.plan.under_load) is not None:
            of_load = _stored_path(placed(self.workload_path, self.workload, WORKLOAD_SUFFIX), path)
            workload = load.workload.model_copy(update={"path": of_load})
            changes["under_load"] = load.model_copy(update={"workload": workload})
            if (fleet := self.plan.fleet) is not None and fleet.workload.path:
                whole = fleet.workload.model_copy(update={"path": _stored_path(Path(fleet.workload.path), path)})
                changes["fleet"] = fleet.model_copy(update={"workload": whole})
        return self.plan.model_copy(update=changes), {} if is_stream else files

    def save(self, path: Path | str) -> Plan:
        """Write the plan to a file, say X.json, and unsaved inputs next to it: X.profile.json, X.trace.npz, and a
        workload as X.workload.json.

        Returns the plan as written, with the paths and the SHA-256 of both.
        """
        path = Path(path)
        plan, files = self.placed(path)
        for file, content in files.items():
            write_output(file, content)
        plan.save(path)
        return plan


def _stored_path(path: Path, plan_path: Path) -> str:
    """Path as a plan names it: relative for files next to or below it, so that all may be moved together."""
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
