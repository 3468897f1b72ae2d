"""Another engine than this package's in place of the one that a plan was made for."""

from collections.abc import Mapping

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.devices import DEVICES
from swiftspec.engines import engine_named
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.planner.deployment import Deployment, planned_pair
from swiftspec.planner.under_load.candidates import ServingEngine
from swiftspec.policies import Layout

__all__ = ["serving_of_plan"]


def serving_of_plan(
    plan: Plan, candidate: Candidate, *, engine: str, settings: Mapping[str, str]
) -> ServingEngine | None:
    """The engine with a plan's models, for one of its candidates; None for this package's own.

    Parameters
    ----------
    plan : Plan
    candidate : Candidate
    engine : str
        With its release, as `vllm@0.15`.
    settings : mapping of str to str
        Limits by the engine's own words.

    Raises
    ------
    ValueError
        If the plan is of measured devices, the engine or a limit is unknown, or it cannot run the candidate.
    """
    if engine_named(engine).name == SWIFTSPEC.name and not settings:
        return None
    if plan.device not in DEVICES:
        raise ValueError(f"engine is {engine}; the plan's device is {plan.device}, for which its steps are not known")
    deployment = Deployment.of_plan(plan, engine=engine, settings=settings)
    serving = deployment.serving(
        *planned_pair(plan.target.model, plan.draft.model, expert_parallel=deployment.expert_parallel)
    )
    assert serving is not None, "this package's own has no settings"
    policy = candidate.build()
    if policy.layout is Layout.DISAGGREGATED or policy.verifies_trees:
        raise ValueError(
            f"policy is {policy.name}; {serving.engine.full_name} verifies chains, drafted on the target's devices"
        )
    return serving
