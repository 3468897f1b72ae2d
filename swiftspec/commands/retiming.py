"""What a plan would have predicted, had the profile been as the machine was while its policies were measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swiftspec import console
from swiftspec.acceptance import AcceptanceTrace
from swiftspec.commands.wording import signed_percent
from swiftspec.plan import Candidate, Plan
from swiftspec.profile import Profile, StepTable
from swiftspec.report import Drift, Report
from swiftspec.specs import ModelSpec, model_directory
from swiftspec.timeline import Figures

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Launcher
    from swiftspec.profiler.drift import DriftGauge

__all__ = ["gauge", "list_drift", "retimed_figures", "say_drift"]

_TEXTS_DIFFER = 0.02  # of tokens per round; replayed on the text that was measured, predictions agree better than that


def gauge(made: Plan, candidates: Sequence[Candidate], engines: Mapping[str, "Launcher"]) -> "DriftGauge":
    """Of the engines that the candidates run on, each once."""
    from swiftspec.profiler.drift import DriftGauge

    spec = ModelSpec.from_directory(model_directory(made.target.model))
    held = {id(engine): (engine, c.groups, c.ranks) for c in candidates for engine in [engines[c.policy]]}
    return DriftGauge(list(held.values()), vocab_size=spec.vocab_size)


def retimed_figures(
    made: Plan,
    candidates: Sequence[Candidate],
    *,
    profile: Profile,
    trace: AcceptanceTrace,
    factors: Mapping[StepTable, float],
) -> dict[str, Figures]:
    """By policy: the plan's prediction again, with the profile's steps as long as they had become."""
    from swiftspec.planner.evaluation import Effort, Evaluator
    from swiftspec.planner.space import Option

    effort = Effort(
        prompt_indices=tuple(range(len(trace.prompts))), max_new_tokens=made.max_new_tokens, seeds=(0,), explain=True
    )
    options = [Option(policy=c.build(), groups=c.groups, ranks=c.ranks) for c in candidates]
    with console.progress("re-time") as progress:
        total = len(options)
        outcomes = Evaluator(profile.retimed(factors), trace, num_jobs=-1).run(
            options, effort, done=lambda count: progress(count, total, "simulating again")
        )
    return {outcome.option.policy.name: outcome.metrics.figures for outcome in outcomes if outcome.metrics is not None}


def list_drift(factors: Mapping[StepTable, float]) -> list[Drift]:
    """For the report."""
    return [Drift(**table._asdict(), factor=factor) for table, factor in factors.items()]


def say_drift(report: Report) -> None:
    """How text and machine differ from what was traced and profiled, and what that explains."""
    if (text := report.text_error) is not None and abs(text) > _TEXTS_DIFFER:
        change = 1 / (1 + text) - 1
        console.say(
            f"Rounds brought {signed_percent(change)} tokens against the prediction, in the median over policies: "
            f"these prompts are {'easier' if change > 0 else 'harder'} than those traced."
        )
    if not report.drift:
        return
    factors = [drift.factor - 1 for drift in report.drift]
    console.say(
        f"While this was measured, forwards took {signed_percent(min(factors))} to {signed_percent(max(factors))} "
        "against the profile, kind by kind. Re-timed predictions take that into account; their errors are the model's."
    )
