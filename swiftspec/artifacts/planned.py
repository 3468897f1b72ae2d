"""Planned: a plan together with its profile and trace; made, saved and loaded as one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from swiftspec.artifacts.basis import make_basis, path_of, read_profile, read_trace, stored_path
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import Workload
from swiftspec.files.writing import locate, write_output

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

        Raises
        ------
        ValueError
            If a file cannot be read, or its SHA-256 is not that of the file the plan was computed from.
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
        profile_path, trace_path = self.profile_path, self.trace_path
        if profile_path is None:
            profile_path = path.with_suffix(PROFILE_SUFFIX)
            files[profile_path] = self.profile.to_bytes()
        if trace_path is None:
            trace_path = path.with_suffix(TRACE_SUFFIX)
            files[trace_path] = self.trace.to_bytes()
        bases = {
            name: make_basis(source, plan_path=path, content=files.get(source))
            for name, source in (("profile", profile_path), ("trace", trace_path))
        }
        plan = self._with_workload(self.plan.model_copy(update=bases), path, files)
        return plan, {} if is_stream else files

    def _with_workload(self, plan: Plan, path: Path, files: dict[Path, bytes]) -> Plan:
        """The plan as saved at `path` names its workload, which is added to `files` if it is not a file yet."""
        if plan.under_load is None:
            return plan
        workload_path = self.workload_path
        if workload_path is None:
            assert self.workload is not None, "a plan made for a load knows it"
            workload_path = path.with_suffix(WORKLOAD_SUFFIX)
            files[workload_path] = self.workload.to_bytes()
        basis = plan.under_load.workload.model_copy(update={"path": stored_path(workload_path, plan_path=path)})
        changes: dict[str, object] = {"under_load": plan.under_load.model_copy(update={"workload": basis})}
        if plan.fleet is not None and plan.fleet.workload.path:
            whole = plan.fleet.workload
            stored = whole.model_copy(update={"path": stored_path(Path(whole.path), plan_path=path)})
            changes["fleet"] = plan.fleet.model_copy(update={"workload": stored})
        return plan.model_copy(update=changes)

    def save(self, path: Path | str) -> Plan:
        """Write the plan to a file, say X.json, and unsaved inputs next to it: X.profile.json, X.trace.npz, and a
        workload as X.workload.json.

        Returns
        -------
        Plan
            The plan as written, with the paths and the SHA-256 of both.
        """
        path = Path(path)
        plan, files = self.placed(path)
        for file, content in files.items():
            write_output(file, content)
        plan.save(path)
        return plan


def side_files(
    out: Path, *, with_profile: bool = True, with_trace: bool = True, with_workload: bool = False
) -> dict[str, Path]:
    """Files written next to a plan, by their description; none for a pipe or a device."""
    if not (with_profile or with_trace or with_workload) or locate(out).is_stream:
        return {}
    suffixes = {"profile": PROFILE_SUFFIX, "trace": TRACE_SUFFIX, "workload": WORKLOAD_SUFFIX}
    written = {"profile": with_profile, "trace": with_trace, "workload": with_workload}
    return {f"the {name} next to --out": out.with_suffix(suffixes[name]) for name, is_new in written.items() if is_new}
