"""`swiftspec simulate --load`: serves many requests in simulated time."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from swiftspec.api.serving import SimulatedLoad, planned_load
from swiftspec.api.serving import simulate_load as serve
from swiftspec.artifacts.basis import candidate_of, files_of, searching
from swiftspec.artifacts.load_metrics import LoadMetrics, Percentiles
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.cli import console
from swiftspec.cli.limits import Limits, load_options, read_load
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.settings import SCHEDULER
from swiftspec.reports.formatting import count, milliseconds, percent, speed
from swiftspec.reports.under_load import compared
from swiftspec.timing.perfetto import save_timelines

__all__ = ["show_load_metrics", "simulate_load"]


def simulate_load(
    *,
    plan: Path,
    load: str,
    policy: str | None,
    limits: Limits,
    engine: str | None = None,
    settings: Mapping[str, str] | None = None,
    max_new_tokens: int | None,
    earlier_outputs: int | None,
    seed: int,
    timeline: Path | None = None,
    plot: Path | None = None,
    json_path: Path | None = None,
) -> SimulatedLoad:
    """Serve a load and print the metrics. limits: settings by name. engine: another one, with its settings."""
    _check_engine(engine, settings, {**limits, "timeline": timeline, "plot": plot})
    if max_new_tokens is not None:
        raise ValueError(f"--max-new-tokens is {max_new_tokens}; with --load, its requests have their own lengths")
    check_outputs(inputs={"--plan": plan, "--load": load}, timeline=timeline, plot=plot, json=json_path)
    made = Plan.load(plan)
    check_outputs(inputs=files_of(made, plan), timeline=timeline, plot=plot, json=json_path)
    planned = Planned.of(made, plan)
    asked, path = read_load(load, planned)
    assumed = planned_load(made, asked, path)
    candidate = searching(candidate_of(made, policy), earlier_outputs)
    options = load_options(limits, assumed.options_of(candidate.policy) if assumed else None)
    served = partial(
        serve,
        planned,
        asked,
        policy=policy,
        options=options,
        engine=engine,
        settings=settings,
        seed=seed,
        timelines=timeline is not None or plot is not None,
        stages=console.progress,
    )
    simulated = served(earlier_outputs=earlier_outputs)
    by = f"by {engine}" if engine else f"at most {options.max_running} at once"
    console.paragraph(
        f"Simulated {candidate.describe()} under {asked.arrivals}: {count(len(asked.requests), 'request')}, {by}, "
        f"simulated by {simulated.method}"
    )
    if asked.repeated_share and simulated.cache is None:
        console.paragraph("This package's engine has no prefix cache and reads the prompts whole.")
    if assumed is not None:
        console.paragraph(compared(assumed, candidate.policy))
    if simulated.num_replayed:
        console.paragraph(
            "Requests replay rounds that were recorded of the first ones. Against simulations in full (--full), mean "
            "TPOT and end-to-end times were within 4 % for the policies in docs/log/2026-11-26-recorded-rounds.md."
        )
    if engine is None and made.under_load is not None and made.under_load.engine:
        console.note(f"The plan was made for {made.under_load.engine}; --engine serves as it does")
    show_load_metrics(simulated)
    own_text = None
    if earlier_outputs is not None:  # in full, as the other was
        own_text = served(earlier_outputs=0, options=options.model_copy(update={"replay": False}))
        before, after = own_text.metrics, simulated.metrics
        console.paragraph(
            f"With the request's own text only: {before.tokens_per_round:.3f} tokens per round and a mean TPOT of "
            f"{milliseconds(before.tpot_s.mean)} ms; with earlier outputs {after.tokens_per_round:.3f} and "
            f"{milliseconds(after.tpot_s.mean)} ms. {_repeats(simulated)}"
        )
    if timeline is not None:
        save_timelines(timeline, simulated.timelines, together=True)
    if plot is not None:
        from swiftspec.reports.figures import save_figure, shared_steps

        save_figure(plot, shared_steps(simulated.timelines))
    content: dict[str, Any] = {
        "policy": candidate.policy,
        "candidate": candidate.describe(),
        "workload": str(asked.arrivals),
        "seed": seed,
        "metrics": simulated.metrics.model_dump(mode="json"),
        "mean_batch": simulated.mean_batch,
        "busy_fraction": simulated.busy_fraction,
        "method": simulated.method,
        "num_replayed": simulated.num_replayed,
        "cache": None if simulated.cache is None else simulated.cache.model_dump(mode="json"),
    }
    if own_text is not None:
        content |= {
            "num_repeated": simulated.num_repeated,
            "own_text_metrics": own_text.metrics.model_dump(mode="json"),
        }
    write_json(json_path, content)
    return simulated


def _check_engine(engine: str | None, settings: Mapping[str, str] | None, others: Mapping[str, object]) -> None:
    """ValueError for flags that do not go with another engine, or need one."""
    if engine is None and settings:
        word = next(iter(settings))
        raise ValueError(f"--set {word} is unknown; expected {', '.join(SCHEDULER)}, or the words of another --engine")
    for name, value in others.items():
        if engine is not None and value is not None:
            flag = f"--set {name}" if name in SCHEDULER else f"--{name}"
            raise ValueError(f"{flag} is {value}; it is this package's engine's, and --engine is {engine}")


def _repeats(load: SimulatedLoad) -> str:
    """A sentence on requests whose outputs an earlier one had: they gain most, and yours may not repeat as often."""
    of_all = f"{load.num_repeated} of {count(len(load.records), 'request')}"
    return f"The texts of {of_all} begin with the traced prompt of an earlier one, whose output is then proposed whole."


def show_load_metrics(load: SimulatedLoad) -> None:
    """Print every figure."""
    metrics = load.metrics
    rows = [
        ("TTFT", *_cells(metrics.ttft_s)),
        ("TPOT", *_cells(metrics.tpot_s)),
        ("between chunks", *_cells(metrics.itl_s)),
        ("end to end", *_cells(metrics.e2el_s)),
        ("wait for admission", *_cells(metrics.queued_s)),
    ]
    console.table("Latencies in ms", ("figure", "mean", "p50", "p95", "p99"), rows)
    console.table("Load", ("figure", "value"), list(_load_rows(load, metrics)))


def _load_rows(load: SimulatedLoad, metrics: LoadMetrics) -> list[tuple[str, str]]:
    refused = f", {metrics.refused} refused" if metrics.refused else ""
    rows = [
        ("requests", f"{metrics.completed} in {metrics.duration_s:.1f} s{refused}"),
        ("requests/s", f"{metrics.request_throughput:.2f}"),
        ("output tokens/s", speed(metrics.output_throughput)),
        ("requests in a target's step, mean", f"{load.mean_batch:.2f}"),
        ("target busy", percent(load.busy_fraction)),
        ("tokens per round", f"{metrics.tokens_per_round:.2f}"),
        ("preemptions", str(metrics.num_preemptions)),
    ]
    if load.cache is not None:
        rows.append(("prompts' tokens in the prefix cache", percent(load.cache.hit_rate)))
        rows.append(("tokens of cache", f"{load.cache.tokens:,}"))
    if metrics.request_goodput < metrics.request_throughput:
        rows.append(("requests/s within their limits", f"{metrics.request_goodput:.2f}"))
    rows += [
        (f"within their limits, {name}", percent(share)) for name, share in metrics.attainment.items() if share < 1
    ]
    return rows


def _cells(values: Percentiles) -> tuple[str, ...]:
    return tuple(map(milliseconds, (values.mean, values.p50, values.p95, values.p99)))
