"""Repeated predictions: with the latencies measured during validation, and with a trace of the measured texts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swiftspec.artifacts.metrics import Figures
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.profile import Profile, StepTable
from swiftspec.artifacts.report import Drift
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.progress import Stages, silent
from swiftspec.timing.row_factors import RowFactors

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Launcher
    from swiftspec.profiler.drift import DriftProbe

__all__ = ["drift_probe", "list_drift", "measured_text", "retimed_figures"]


def drift_probe(made: Plan, candidates: Sequence[Candidate], engines: Mapping[str, "Launcher"]) -> "DriftProbe":
    """Drift probe of the engines that the candidates run on, each once."""
    from swiftspec.profiler.drift import DriftProbe
    from swiftspec.profiler.prompts import prompts_for

    spec = ModelSpec.from_directory(model_directory(made.target.model))
    held = {id(engine): (engine, c.groups, c.ranks) for c in candidates for engine in [engines[c.policy]]}
    return DriftProbe(list(held.values()), prompt=prompts_for(made.target, spec))


def retimed_figures(
    made: Plan,
    candidates: Sequence[Candidate],
    *,
    profile: Profile,
    trace: AcceptanceTrace,
    factors: Mapping[StepTable, RowFactors],
    stages: Stages = silent,
) -> dict[str, Figures]:
    """The plan's prediction by policy, repeated with the latencies during the measurement."""
    from swiftspec.costmodel.routed_profile import routed_profile
    from swiftspec.planner.search.evaluation import Budget, Evaluator
    from swiftspec.planner.search.space import Option

    most = max(made.max_new_tokens, max(len(prompt.target_tokens) for prompt in trace.prompts))
    budget = Budget(prompt_indices=tuple(range(len(trace.prompts))), max_new_tokens=most, seeds=(0,), explain=True)
    options = [Option(policy=c.build(), groups=c.groups, ranks=c.ranks) for c in candidates]
    with stages("re-time") as progress:
        total = len(options)
        priced = routed_profile(profile.retimed(factors), trace)
        outcomes = Evaluator(priced, trace, num_jobs=-1).run(
            options, budget, done=lambda count: progress(count, total, "simulating again")
        )
    return {outcome.option.policy.name: outcome.metrics.figures for outcome in outcomes if outcome.metrics is not None}


def measured_text(
    trace: AcceptanceTrace,
    prompts: Sequence[tuple[str, tuple[int, ...]]],
    outputs: Sequence[tuple[int, ...]],
    *,
    stages: Stages = silent,
) -> AcceptanceTrace:
    """A trace of the measured texts, prompts (id, token ids) with their outputs, by the models of another trace."""
    from swiftspec.devices.local import num_devices_here
    from swiftspec.profiler.acceptance import record_trace

    with stages("re-trace") as progress:
        return record_trace(
            target=trace.target,
            draft=trace.draft,
            prompts=prompts,
            outputs=outputs,
            max_new_tokens=max(map(len, outputs)),
            num_candidates=trace.prompts[0].draft.num_candidates,
            num_threads=num_devices_here("cpu"),
            progress=progress,
        )


def list_drift(factors: Mapping[StepTable, RowFactors]) -> list[Drift]:
    """Drift entries for the report."""
    return [
        Drift(**table._asdict(), factor=found.overall, by_rows=dict(found.by_rows)) for table, found in factors.items()
    ]
