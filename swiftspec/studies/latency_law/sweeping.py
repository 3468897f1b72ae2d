"""Sweep of loads, as `swiftspec study latency` runs it: latencies over rates, the law fitted, and what follows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.api.inputs import check_context, read_priced
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.errors import FieldError
from swiftspec.progress import Stages, silent
from swiftspec.studies.latency_law.document import Sweep
from swiftspec.studies.latency_law.sweeper import Measuring, Sweeper, coverage_of, document, lengthened

if TYPE_CHECKING:
    from swiftspec.studies.latency_law.coverage import ExpertCoverage

LEAST_REQUESTS = 32
_ANY = LoadOptions()


def sweep(
    planned: Planned | Path | str | None,
    workload: Workload | Path | str,
    *,
    policy: str | None = None,
    num_draft_tokens: Sequence[int] = (),
    options: LoadOptions = _ANY,
    measuring: Measuring | None = None,
    coverage: "ExpertCoverage | None" = None,
    seed: int = 0,
    num_jobs: int = -1,
    stages: Stages = silent,
) -> Sweep:
    """Serve the same requests at rising rates, by a policy and by plain decoding, and fit L = C1 / (1 - RPS C2).

    One client alone, a closed loop of as many clients as may run at once, and eight evenly spaced rates of Poisson
    arrivals up to that loop's throughput; at low rates with fewer requests.

    Parameters
    ----------
    planned : Planned, or path, or None
        None only for a server.
    workload : Workload, or path
        Its requests; their arrivals are replaced.
    policy : str, optional
        One of the plan's alternatives; its choice if not given. None for a server without a plan.
    num_draft_tokens : sequence of int
        Draft tokens per round to simulate instead of the plan's, for a policy that drafts a chain. For a server without
        a plan, its own number.
    options : LoadOptions
        Limits of the scheduler, and the control of drafting in simulations and on an engine here. A server has its own.
    measuring : Measuring, optional
        What to measure besides; simulated only if not given.
    coverage : ExpertCoverage, optional
        Of a sparse target. By default that of its config.json, if the plan names its directory.
    seed : int
        Of arrivals and texts.
    num_jobs : int
        Simulation processes; -1 is one per core.
    stages : Stages
        Receives progress reports.

    Raises
    ------
    ValueError
        If the plan has no such policy, there are too few requests, or a server does not answer.
    swiftspec.errors.EngineError
        If a process of a target died.

    Examples
    --------
    >>> from swiftspec.studies.latency_law.sweeping import sweep
    >>> swept = sweep("plan.json", "workload.json", policy="serial_chain")
    >>> swept.policies[0].curve.fitted.c1_s
    0...
    """
    planned = None if planned is None else read_priced(planned)
    asked = workload if isinstance(workload, Workload) else Workload.load(Path(workload))
    _check(planned, asked, options, num_draft_tokens, measuring)
    if planned is None:
        _check_server_alone(policy, options)
    sweeper = Sweeper(
        asked=asked,
        options=options if planned is None else options.on(planned.profile.device),
        coverage=coverage or coverage_of(planned),
        measuring=measuring,
        seed=seed,
        num_jobs=num_jobs,
    )
    candidates = [] if planned is None else lengthened(planned, policy, num_draft_tokens)
    if planned is not None:
        check_context(planned.plan.target, candidates, asked)
    with stages("sweep") as progress:
        if planned is None:
            swept = list(sweeper.servers(num_draft_tokens, progress))
        else:
            swept = list(sweeper.policies(planned, candidates, progress))
    return document(sweeper, planned, swept)


def _check(
    planned: Planned | None,
    asked: Workload,
    options: LoadOptions,
    num_draft_tokens: Sequence[int],
    measuring: Measuring | None,
) -> None:
    """ValueError for arguments that do not go together."""
    if len(asked.requests) < LEAST_REQUESTS:
        raise FieldError("num_requests", len(asked.requests), f"expected at least {LEAST_REQUESTS}")
    if options.max_running < 2:
        raise ValueError(f"max_running is {options.max_running}; expected at least 2, or there is nothing to share")
    if len(set(num_draft_tokens)) < len(num_draft_tokens) or any(number < 1 for number in num_draft_tokens):
        listed = ",".join(map(str, num_draft_tokens))
        raise ValueError(f"num_draft_tokens is {listed}; expected different whole numbers from 1 on")
    is_server = measuring is not None and measuring.url is not None
    if planned is None and not is_server:
        raise ValueError("plan is missing; only a server can be swept without one")
    if num_draft_tokens and measuring is not None and (planned is not None or len(num_draft_tokens) > 1):
        listed = ",".join(map(str, num_draft_tokens))
        raise ValueError(f"num_draft_tokens is {listed}; only simulations can change what the plan, or a server, runs")


def _check_server_alone(policy: str | None, options: LoadOptions) -> None:
    """ValueError for arguments that only a plan's simulations follow."""
    for field, value in (("policy", policy), ("control", options.control)):
        if value is not None:
            raise ValueError(f"{field} is {value}; without a plan nothing is simulated, and the server has its own")
