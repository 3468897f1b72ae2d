"""Simulation of a plan under load, as `swiftspec simulate --workload` runs it."""

from collections.abc import Mapping
from pathlib import Path

from swiftspec.artifacts.load_goal import LoadGoal, LoadOptions
from swiftspec.artifacts.load_metrics import SimulatedLoad
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.under_load import UnderLoad, workload_sha256
from swiftspec.artifacts.workload import Workload
from swiftspec.progress import Stages, silent
from swiftspec.stages.inputs import check_context, read_priced

__all__ = ["LoadOptions", "SimulatedLoad", "planned_load", "simulate_load"]

_ANY = LoadOptions()


def simulate_load(
    planned: Planned | Path | str,
    workload: Workload | Path | str,
    *,
    policy: str | None = None,
    options: LoadOptions | None = None,
    earlier_outputs: int | None = None,
    engine: str | None = None,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    stages: Stages = silent,
) -> SimulatedLoad:
    """Serve a workload by a plan in simulated time.

    Texts are the plan's traced ones, chosen at random for requests that name no prompt, and cut or continued to the
    workload's lengths: load and acceptance are independent.

    Parameters
    ----------
    planned : Planned, or path
    workload : Workload, or path
        If the plan was made for it, the latency limits are those of the plan; otherwise the workload's own.
    policy : str, optional
        One of the plan's alternatives; its choice if not given.
    options : LoadOptions, optional
        Limits of the scheduler. If not given, those of a plan that was made for this workload.
    earlier_outputs : int, optional
        Most outputs of earlier requests that a suffix-decoding policy searches, too. The plan's if not given, which is
        none.
    engine : str, optional
        Engine that serves instead of this package's, with its release: `vllm@0.15`. Its limits are then those of its
        steps, and `options` are not used.
    settings : mapping of str to str, optional
        With `engine`: limits by its own words.
    seed : int
        The same seed gives the same result.
    stages : Stages
        Receives progress reports.

    Raises
    ------
    ValueError
        If the plan has no such policy, the policy searches no earlier outputs, a prompt is not in its trace, or a
        request does not fit into the target's context or the cache, or the engine cannot run the policy.
    """
    planned = read_priced(planned)
    path = None if isinstance(workload, Workload) else Path(workload)
    asked = workload if isinstance(workload, Workload) else Workload.load(workload)
    from swiftspec.artifacts.basis import candidate_of, searching
    from swiftspec.simulator.load import serve_workload

    candidate = searching(candidate_of(planned.plan, policy), earlier_outputs)
    check_context(planned.plan.target, [candidate], asked)
    assumed = planned_load(planned.plan, asked, path)
    goal = assumed.goal if assumed else LoadGoal.of(asked.classes)
    if engine is not None:
        from swiftspec.planner.under_load.planned import serve_plan_under_engine

        return serve_plan_under_engine(
            planned, candidate, asked, engine=engine, settings=settings or {}, goal=goal, seed=seed
        )
    with stages("simulate") as progress:
        return serve_workload(
            candidate,
            asked,
            latencies=planned.profile.latencies,
            trace=planned.trace,
            goal=goal,
            options=(options or (assumed.options_of(candidate.policy) if assumed else _ANY)).on(planned.profile.device),
            seed=seed,
            done=lambda count: progress(count, len(asked.requests), "requests"),
        )


def planned_load(plan: Plan, workload: Workload, path: Path | None = None) -> UnderLoad | None:
    """The plan's predictions under load, if they are for this workload."""
    assumed = plan.under_load
    if assumed is None or assumed.workload.sha256 != workload_sha256(workload, path):
        return None
    return assumed
