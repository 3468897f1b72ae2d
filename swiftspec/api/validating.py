"""The stages that compare predictions with measurements: of a plan alone, and under load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from swiftspec.api.inputs import Prompts, read_plan, read_priced, read_texts
from swiftspec.api.load_testing import send
from swiftspec.api.planning import simulate_load
from swiftspec.artifacts.load_metrics import MeasuredLoad, SimulatedLoad
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.load_report import LoadReport, PolicyLoad
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.planned import Planned, candidate_of
from swiftspec.artifacts.report import Report
from swiftspec.artifacts.workload import Workload
from swiftspec.errors import FieldError
from swiftspec.files.document import Origin
from swiftspec.policies.effects import Role
from swiftspec.progress import Stages, silent, time_limit
from swiftspec.scheduler.controls.named import control_under
from swiftspec.timing.timeline import Timeline


def validate(
    planned: Planned | Path | str,
    prompts: Prompts,
    *,
    policies: Sequence[str] | None = None,
    repeats: int = 1,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    stages: Stages = silent,
) -> Report:
    """Run a plan's policies on this machine, and compare measured with predicted speeds.

    Parameters
    ----------
    planned : Planned, or path
        A plan or its file.
    prompts : sequence of str, or path
        Texts, or a file of JSON lines with a field `prompt`. They should not be the traced ones.
    policies : sequence of str, optional
        Policies to run; the chosen one is always included. All of the plan's if not given.
    repeats : int
        How often each prompt is run with each policy; speeds are medians over the repetitions.
    limit : int, optional
        Use this many prompts, spread evenly over those given. By default all, or of slow models what ten minutes allow.
    max_new_tokens : int, optional
        Output tokens per prompt; the plan's if not given.
    stages : Stages
        Receives progress reports.

    Returns
    -------
    Report

    Raises
    ------
    ValueError
        If the plan is for another machine, a policy is not in it, or a prompt does not fit the context.
    KeyboardInterrupt
        If Ctrl-C ended it early.
    swiftspec.errors.EngineError
        If a process of a target died.

    Examples
    --------
    >>> report = swiftspec.validate("plan.json", ["def add(a, b):"], policies=["autoregressive"], max_new_tokens=16)
    >>> report.regret >= 0  # how much faster the best policy was than the chosen one, as a fraction
    True
    """
    planned = read_plan(planned)
    from swiftspec.validation.measuring import measure_plan

    report, interrupted = measure_plan(
        planned.plan,
        plan_sha256=sha256(planned.plan.to_bytes()).hexdigest(),
        candidates=planned.plan.select(policies),
        source="plan",
        prompts=read_texts(prompts, limit),
        repeats=repeats,
        max_new_tokens=max_new_tokens,
        basis=(planned.profile, planned.trace),
        stages=stages,
        stop=time_limit() if limit is None else None,
    )
    if interrupted:
        raise KeyboardInterrupt
    return report


_ANY = LoadOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadComparison:
    """Result of a validation under load: the report, and timelines of the plan's choice, predicted and measured."""

    report: LoadReport
    simulated: tuple[Timeline, ...]
    measured: tuple[Timeline, ...]


def validate_load(
    planned: Planned | Path | str,
    workload: Workload | Path | str,
    prompts: Prompts,
    *,
    policies: Sequence[str] | None = None,
    options: LoadOptions = _ANY,
    seed: int = 0,
    limit: int | None = None,
    url: str | None = None,
    api_key: str = "",
    stages: Stages = silent,
) -> LoadComparison:
    """Serve a workload on this machine, and compare what was measured with what is simulated.

    workload: its requests come at their times, or when a client of the closed loop is free. Their outputs have exactly
    its lengths: they do not end at an end of sequence.
    prompts: texts, of which one is drawn for each request by the seed, and cut or repeated to its length; at most
    `limit`. They should not be the traced ones.
    policies: all of the plan's if not given; the chosen one is always included.
    options: limits of the scheduler, simulated and measured.
    url: send the workload to this server, which runs one policy of the plan, instead of to an engine of its own.
    `policies` names it, unless it is the plan's choice. It is re-timed if the server keeps timelines.

    ValueError: if the plan is for another machine, a policy is not in it, a request does not fit the context or the
    cache, or the server does not answer. KeyboardInterrupt: if Ctrl-C ended it early. EngineError: if a process of a
    target died.
    """
    planned = read_priced(planned)
    options = options.on(planned.profile.device)
    workload = workload if isinstance(workload, Workload) else Workload.load(Path(workload))
    if url is None:
        from swiftspec.validation.load import engine_for_load, load_requests

        candidates = planned.plan.select(policies)
        requests = load_requests(planned.plan, workload, read_texts(prompts, limit), seed=seed)
    else:
        candidates = [_policy_of_server(planned.plan, policies, url)]
    simulated = partial(simulate_load, workload=workload, options=options, seed=seed, timelines=True, stages=stages)
    loads: list[PolicyLoad] = []
    shown = planned.plan.chosen.policy if url is None else candidates[0].policy
    for candidate in candidates:
        predicted = simulated(planned, policy=candidate.policy)
        if url is None:
            control = control_under(options.control, candidate.control)
            with (
                stages("validate") as progress,
                engine_for_load(
                    planned.plan, candidate, workload, requests, options=options, control=control, progress=progress
                ) as engine,
            ):
                served: MeasuredLoad = engine.serve(workload, requests, progress=progress)
        else:
            _, served = send(url, workload, prompts, api_key=api_key, seed=seed, limit=limit, stages=stages)
        loads.append(_compared(planned, candidate, predicted, served, simulated))
        if candidate.policy == shown:
            before, after = predicted.timelines, served.timelines
    report = LoadReport(
        origin=Origin.here(),
        plan_sha256=sha256(planned.plan.to_bytes()).hexdigest(),
        workload_sha256=sha256(workload.to_bytes()).hexdigest(),
        workload=str(workload.arrivals),
        num_requests=len(workload.requests),
        max_running=options.max_running,
        num_targets=options.num_targets,
        num_drafts=options.num_drafts,
        policies=tuple(loads),
    )
    return LoadComparison(report=report, simulated=tuple(before), measured=tuple(after))


def _policy_of_server(plan: Plan, policies: Sequence[str] | None, url: str) -> Candidate:
    """The policy that a server runs. ValueError if several are named, or the plan does not predict greedy requests."""
    if not plan.sampling.is_greedy:
        raise FieldError("url", url, f"requests to it are greedy; the plan's trace was not: {plan.sampling}")
    if policies is not None and len(policies) != 1:
        raise ValueError(f"--policies is {','.join(policies)}; a server runs one, expected its name")
    return candidate_of(plan, policies[0] if policies else None)


def _compared(
    planned: Planned,
    candidate: Candidate,
    predicted: SimulatedLoad,
    served: MeasuredLoad,
    simulated: Callable[..., SimulatedLoad],
) -> PolicyLoad:
    """One policy, predicted and measured, and predicted again with the latencies that were measured.

    simulated: predicts a plan's policy under the load, as `predicted` was.
    """
    from swiftspec.validation.load_steps import shared_steps, step_factors

    steps = list(shared_steps(served.timelines, served.prompt_tokens))
    retimed = None
    if factors := step_factors(planned.profile, candidate, steps):
        again = replace(planned, profile=planned.profile.retimed(factors))
        retimed = simulated(again, policy=candidate.policy).metrics
    of_target = [step for step in steps if step.role is Role.TARGET]
    busy_s = sum(step.seconds for step in of_target)
    return PolicyLoad(
        policy=candidate.policy,
        candidate=candidate.describe(),
        predicted=predicted.metrics,
        measured=served.metrics,
        retimed=retimed,
        late_s=served.late_s,
        mean_batch=sum(step.num_requests * step.seconds for step in of_target) / busy_s if of_target else None,
    )
