"""Simulation of a plan under load, as `swiftspec simulate --load` runs it."""

from collections.abc import Mapping
from pathlib import Path

from swiftspec.api.inputs import check_context, read_priced
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import SimulatedLoad
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.under_load import UnderLoad, workload_sha256
from swiftspec.artifacts.workload import Workload
from swiftspec.progress import Stages, silent

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
    timelines: bool = False,
    stages: Stages = silent,
) -> SimulatedLoad:
    """Serve a workload by a plan in simulated time.

    Texts are the plan's traced ones, chosen at random for requests that name no prompt, and cut or continued to the
    workload's lengths: load and acceptance are independent. If the plan was made for this workload, the latency limits
    are those of the plan; otherwise the workload's own.

    policy: one of the plan's alternatives; its choice if not given.
    options: limits of the scheduler; those of a plan that was made for this workload if not given.
    earlier_outputs: most outputs of earlier requests that a suffix-decoding policy searches, too; the plan's if not
    given, which is none.
    engine: engine that serves, with its release: `vllm@0.15`. Of another one than this package's, limits are those of
    its steps, changed by `settings` in its own words, and `options` are not used.
    timelines: whether requests are to have timelines: then events are simulated, where recorded rounds might do.

    ValueError: if the plan has no such policy, the policy searches no earlier outputs, a prompt is not in its trace, a
    request does not fit into the target's context or the cache, or the engine cannot run the policy.
    """
    planned = read_priced(planned)
    path = None if isinstance(workload, Workload) else Path(workload)
    asked = workload if isinstance(workload, Workload) else Workload.load(workload)
    from swiftspec.artifacts.planned import candidate_of, searching
    from swiftspec.planner.under_load.measured_engine import MeasuredEngine
    from swiftspec.planner.under_load.predictor import Predictor, serving_of_plan
    from swiftspec.planner.under_load.serving_engine import ServingEngine
    from swiftspec.simulator.latency import LatencyTable
    from swiftspec.simulator.setup import Setup

    candidate = searching(candidate_of(planned.plan, policy), earlier_outputs)
    check_context(planned.plan.target, [candidate], asked)
    assumed = planned_load(planned.plan, asked, path)
    serving: ServingEngine | None = MeasuredEngine.of(planned.profile)
    if engine is not None:
        serving = serving_of_plan(planned.plan, candidate, engine=engine, settings=settings or {})
    predictor = Predictor(
        LatencyTable(planned.profile.latencies),
        planned.trace,
        device=planned.profile.device,
        serving=serving,
        seed=seed,
    )
    options = (options or (assumed.options_of(candidate.policy) if assumed else _ANY)).on(planned.profile.device)
    with stages("simulate") as progress:
        return predictor.serve(
            Setup.of(candidate),
            asked,
            goal=assumed.goal if assumed else Goal(classes=asked.classes),
            options=options,
            replicas=options.replicas,
            timelines=timelines,
            done=lambda count: progress(count, len(asked.requests), "requests"),
        )


def planned_load(plan: Plan, workload: Workload, path: Path | None = None) -> UnderLoad | None:
    """The plan's predictions under load, if they are for this workload."""
    assumed = plan.under_load
    if assumed is None or assumed.workload.sha256 != workload_sha256(workload, path):
        return None
    return assumed
