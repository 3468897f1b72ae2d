"""`swiftspec simulate`: replays a plan in simulated time."""

from functools import partial
from pathlib import Path
from typing import Any

from swiftspec.api import simulate as replay
from swiftspec.artifacts.basis import candidate_of, files_of, searching
from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.reports.formatting import milliseconds, percent, speed
from swiftspec.timing.perfetto import save_timelines
from swiftspec.timing.timeline import Timeline

__all__ = ["show_metrics", "simulate"]


def simulate(
    *,
    plan: Path,
    policy: str | None,
    max_new_tokens: int | None,
    earlier_outputs: int | None,
    seed: int,
    timeline: Path | None = None,
    plot: Path | None = None,
    json_path: Path | None = None,
) -> list[Timeline]:
    """Simulate every traced prompt and print the metrics, and what earlier outputs add to them."""
    check_outputs(inputs={"--plan": plan}, timeline=timeline, plot=plot, json=json_path)
    made = Plan.load(plan)
    check_outputs(inputs=files_of(made, plan), timeline=timeline, plot=plot, json=json_path)
    planned = Planned.of(made, plan)
    candidate = searching(candidate_of(made, policy), earlier_outputs)
    replayed = partial(replay, planned, policy=policy, max_new_tokens=max_new_tokens, seed=seed)
    timelines = replayed(earlier_outputs=earlier_outputs)
    metrics = measure(timelines)
    console.paragraph(
        f"Simulated {candidate.describe()} on {len(planned.trace.prompts)} traced prompts{_twice(planned.profile)}"
    )
    show_metrics(metrics)
    own_text = None if earlier_outputs is None else measure(replayed(earlier_outputs=0))
    if own_text is not None:
        before, after = own_text.figures, metrics.figures
        console.paragraph(
            f"With the request's own text only: {before.tokens_per_round:.3f} tokens per round and "
            f"{speed(before.tokens_per_s)} tokens/s; with earlier outputs "
            f"{after.tokens_per_s / before.tokens_per_s:.3f} times as fast"
        )
    if timeline is not None:
        save_timelines(timeline, timelines)
    if plot is not None:
        from swiftspec.reports.figures import save_figure, timeline_rounds

        save_figure(plot, timeline_rounds(timelines[0]))
    content: dict[str, Any] = {"policy": candidate.policy, "candidate": candidate.describe(), "seed": seed}
    content["metrics"] = metrics.model_dump(mode="json")
    if own_text is not None:
        content["own_text_metrics"] = own_text.model_dump(mode="json")
    write_json(json_path, content)
    return timelines


def _twice(profile: Profile) -> str:
    """Note that every prompt was simulated twice, for a profile whose forwards are not known exactly."""
    from swiftspec.simulator.forward_errors import forward_errors

    known = [f"{role} {percent(error)}" for role, error in forward_errors(profile).of_role.items() if error]
    return f", each twice, with forwards drawn within their known error ({', '.join(known)})" if known else ""


def show_metrics(metrics: Metrics) -> None:
    """Print every figure of a set of requests."""
    figures = metrics.figures
    rows = [
        ("tokens/s", speed(figures.tokens_per_s)),
        ("tokens per round", f"{figures.tokens_per_round:.3f}"),
        ("round, median (p95)", f"{milliseconds(figures.round_s.median)} ms ({milliseconds(figures.round_s.p95)})"),
        ("verification, mean", f"{milliseconds(metrics.verify_s)} ms"),
        ("share of the speed of light", percent(metrics.light_fraction)),
        ("overlap of draft and target", percent(metrics.overlap_fraction)),
        ("TTFT", f"{milliseconds(metrics.ttft_s)} ms"),
        ("TPOT", f"{milliseconds(metrics.tpot_s)} ms"),
        ("tokens", str(metrics.num_tokens)),
        ("rounds", str(metrics.rounds)),
    ]
    if metrics.tail_s is not None:
        tail = f"{milliseconds(metrics.tail_s.median)} ms ({milliseconds(metrics.tail_s.p95)})"
        rows.append(("serial tail of a round on a hit, median (p95)", tail))
    if metrics.hit_fraction is not None:
        rows.append(("rounds without a forward in the tail", percent(metrics.hit_fraction)))
    console.table("Metrics", ("figure", "value"), rows)
