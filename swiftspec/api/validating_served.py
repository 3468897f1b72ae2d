"""Validation of a plan on the engine that it was made for, whose servers this machine starts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.api.inputs import Prompts, read_priced
from swiftspec.api.load_testing import send
from swiftspec.api.serving import simulate_load
from swiftspec.artifacts.load_report import LoadReport, PolicyLoad, PredictedLoads
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.errors import FieldError
from swiftspec.export import export_plan
from swiftspec.files.document import Origin
from swiftspec.progress import Stages, silent

if TYPE_CHECKING:
    from swiftspec.external.engine import EngineHere

__all__ = ["validate_served"]


def validate_served(
    planned: Planned | Path | str,
    workload: Workload | Path | str,
    prompts: Prompts,
    *,
    here: EngineHere,
    policies: Sequence[str] | None = None,
    seed: int = 0,
    limit: int | None = None,
    freeze: Path | None = None,
    stages: Stages = silent,
) -> LoadReport:
    """Start the engine of a plan with each policy, send the same load to each, and compare.

    Parameters
    ----------
    planned : Planned, or path
        A plan on the profile of a server.
    workload : Workload, or path
    prompts : sequence of str, or path
        As of `validate_load`.
    here : EngineHere
        The engine on this machine.
    policies : sequence of str, optional
        Policies to run; the chosen one is always included. All of the plan's that the engine has if not given.
    seed, limit
        As of `validate_load`.
    freeze : Path, optional
        File for the predictions, which are written before the first request is sent.
    stages : Stages
        Receives progress reports.

    Raises
    ------
    ValueError
        If the plan is of no server, a server does not start, or no request ends well.
    """
    planned = read_priced(planned)
    served = planned.profile.served
    if served is None:
        raise FieldError("plan", "one that is not of a server's profile", "expected one on a profile of --engine")
    workload = workload if isinstance(workload, Workload) else Workload.load(Path(workload))
    candidates = planned.plan.select(policies)
    predicted = {
        each.policy: simulate_load(planned, workload, policy=each.policy, seed=seed, stages=stages).metrics
        for each in candidates
    }
    frozen = PredictedLoads(
        origin=Origin.here(),
        plan_sha256=sha256(planned.plan.to_bytes()).hexdigest(),
        workload_sha256=sha256(workload.to_bytes()).hexdigest(),
        policies=predicted,
    )
    if freeze is not None:
        frozen.save(freeze)
    loads = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {}
        for each in candidates:
            exported = export_plan(planned.plan, here.engine, policy=each.policy)
            with stages(f"start {each.policy}") as progress:
                server = here.server(
                    exported.arguments,
                    target=planned.plan.target.model,
                    environment=exported.environment,
                    files=exported.files,
                    log=folder / f"{each.policy}.log",
                    progress=progress,
                )
                urls[each.policy] = stack.enter_context(server).url
        for each in candidates:
            _, sent = send(urls[each.policy], workload, prompts, api_key="", seed=seed, limit=limit, stages=stages)
            loads.append(
                PolicyLoad(
                    policy=each.policy,
                    candidate=each.describe(),
                    predicted=predicted[each.policy],
                    measured=sent.metrics,
                    retimed=None,
                    late_s=sent.late_s,
                    mean_batch=None,
                )
            )
    return LoadReport(
        origin=Origin.here(),
        plan_sha256=frozen.plan_sha256,
        workload_sha256=frozen.workload_sha256,
        predictions_sha256=sha256(frozen.to_bytes()).hexdigest(),
        workload=str(workload.arrivals),
        num_requests=len(workload.requests),
        max_running=served.requests,
        policies=tuple(loads),
    )
