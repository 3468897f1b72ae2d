"""A plan's candidate under an engine that serves, for any workload."""

from collections.abc import Mapping

from swiftspec.artifacts.load_goal import LoadGoal
from swiftspec.artifacts.load_metrics import SimulatedLoad
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.devices import DEVICES
from swiftspec.planner.deployment import Deployment, planned_pair
from swiftspec.planner.under_load.candidates import serve_under_engine
from swiftspec.policies import Layout

__all__ = ["serve_plan_under_engine"]


def serve_plan_under_engine(
    planned: Planned,
    candidate: Candidate,
    workload: Workload,
    *,
    engine: str,
    settings: Mapping[str, str],
    goal: LoadGoal,
    seed: int = 0,
) -> SimulatedLoad:
    """Serve a workload by a candidate of a plan.

    Parameters
    ----------
    engine : str
        With its release, as `vllm@0.15`.
    settings : mapping of str to str
        Limits by the engine's own words.

    Raises
    ------
    ValueError
        If the plan is of measured devices, the engine is none that serves, or it cannot run the candidate.
    """
    plan = planned.plan
    if plan.device not in DEVICES:
        raise ValueError(f"engine is {engine}; the plan's device is {plan.device}, for which its steps are not known")
    deployment = Deployment.of_plan(plan, engine=engine, settings=settings)
    serving = deployment.serving(
        *planned_pair(plan.target.model, plan.draft.model, expert_parallel=deployment.expert_parallel)
    )
    if serving is None:
        raise ValueError(f"engine is {engine}; expected one that serves: vllm, sglang or trtllm")
    policy = candidate.build()
    if policy.layout is Layout.DISAGGREGATED or policy.verifies_trees:
        raise ValueError(
            f"policy is {policy.name}; {serving.engine.full_name} verifies chains, drafted on the target's devices"
        )
    return serve_under_engine(
        candidate,
        workload,
        serving=serving,
        latencies=planned.profile.latencies,
        trace=planned.trace,
        goal=goal,
        seed=seed,
    )
