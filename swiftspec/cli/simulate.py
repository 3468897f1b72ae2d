"""`swiftspec simulate`: replays a plan in simulated time, request by request or under a load."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from swiftspec.api import simulate as replay
from swiftspec.api.planning import planned_load, simulate_load
from swiftspec.artifacts.load_metrics import SimulatedLoad
from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned, candidate_of, searching
from swiftspec.artifacts.profile import Profile
from swiftspec.cli import console
from swiftspec.cli.command import refuse, refuse_settings
from swiftspec.cli.limits import Limits, load_options, read_load
from swiftspec.cli.outputs import draw, read_plan, write_json
from swiftspec.cli.sections import attained, show_latencies, throughput
from swiftspec.cli.settings import SIMULATOR, parse_settings, typed
from swiftspec.cli.verbs.plans import SimulateFlags
from swiftspec.reports.formatting import count, milliseconds, percent, speed
from swiftspec.reports.under_load import compared
from swiftspec.timing.perfetto import save_timelines


def simulate(asked: SimulateFlags) -> None:
    """Simulate every traced prompt, or a load, and print the metrics, and what earlier outputs add to them."""
    settings = parse_settings(asked.settings)
    limits = typed(settings, SIMULATOR)
    earlier_outputs = limits.pop("earlier_outputs", None)
    others = {word: value for word, value in settings.items() if word not in SIMULATOR}
    if asked.load is None:
        refuse_settings({**limits, **others}, "it is only for --load")
        refuse(asked, ("engine",), "it is only for --load")
    else:
        refuse(asked, ("max_new_tokens",), "with --load, requests have their own lengths")
    planned = Planned.of(read_plan(asked, asked.plan), asked.plan)
    candidate = searching(candidate_of(planned.plan, asked.policy), earlier_outputs)
    if asked.load is None:
        found = _simulate_alone(asked, planned, candidate, earlier_outputs)
    else:
        found = _simulate_load(asked, asked.load, planned, candidate, limits, others, earlier_outputs)
    write_json(asked.json, {"policy": candidate.policy, "candidate": candidate.describe(), "seed": asked.seed} | found)


def _simulate_alone(
    asked: SimulateFlags, planned: Planned, candidate: Candidate, earlier_outputs: int | None
) -> dict[str, Any]:
    """Print, draw and save; what --json has."""
    replayed = partial(replay, planned, policy=asked.policy, max_new_tokens=asked.max_new_tokens, seed=asked.seed)
    timelines = replayed(earlier_outputs=earlier_outputs)
    metrics = measure(timelines)
    console.paragraph(
        f"Simulated {candidate.describe()} on {len(planned.trace.prompts)} traced prompts{_twice(planned.profile)}"
    )
    _show_alone(metrics)
    content = {"metrics": metrics.model_dump(mode="json")}
    if earlier_outputs is not None:
        own_text = measure(replayed(earlier_outputs=0))
        before, after = own_text.figures, metrics.figures
        console.paragraph(
            f"With the request's own text only: {before.tokens_per_round:.3f} tokens per round and "
            f"{speed(before.tokens_per_s)} tokens/s; with earlier outputs "
            f"{after.tokens_per_s / before.tokens_per_s:.3f} times as fast"
        )
        content["own_text_metrics"] = own_text.model_dump(mode="json")
    if asked.timeline is not None:
        save_timelines(asked.timeline, timelines)
    draw(asked.plot, "timeline_rounds", timelines[0])
    return content


def _simulate_load(
    asked: SimulateFlags,
    load: str,
    planned: Planned,
    candidate: Candidate,
    limits: Limits,
    settings: Mapping[str, str],
    earlier_outputs: int | None,
) -> dict[str, Any]:
    """Print, draw and save; what --json has. limits: of this package's engine. settings: of another one."""
    engine = asked.engine
    if engine is not None:
        why = f"it is this package's engine's, and --engine is {engine}"
        refuse_settings(limits, why)
        refuse(asked, ("timeline", "plot"), why)
    elif settings:
        word = next(iter(settings))
        raise ValueError(f"--set {word} is unknown; expected {', '.join(SIMULATOR)}, or the words of another --engine")
    workload, path = read_load(load, planned)
    assumed = planned_load(planned.plan, workload, path)
    options = load_options(limits, assumed.options_of(candidate.policy) if assumed else None)
    served = partial(
        simulate_load,
        planned,
        workload,
        policy=asked.policy,
        options=options,
        engine=engine,
        settings=settings,
        seed=asked.seed,
        timelines=asked.timeline is not None or asked.plot is not None,
        stages=console.progress,
    )
    simulated = served(earlier_outputs=earlier_outputs)
    by = f"by {engine}" if engine else options.replicas.at_once(options.max_running)
    console.paragraph(
        f"Simulated {candidate.describe()} under {workload.arrivals}: {count(len(workload.requests), 'request')}, "
        f"{by}, simulated by {simulated.method}"
    )
    if workload.repeated_share and simulated.cache is None:
        console.paragraph("This package's engine has no prefix cache and reads the prompts whole.")
    if assumed is not None:
        console.paragraph(compared(assumed, candidate.policy))
    planned_for = planned.plan.under_load.engine if planned.plan.under_load else None
    if engine is None and planned_for:
        console.note(f"The plan was made for {planned_for}; --engine serves as it does")
    _show_load(simulated)
    content: dict[str, Any] = {
        "workload": str(workload.arrivals),
        "metrics": simulated.metrics.model_dump(mode="json"),
        "mean_batch": simulated.mean_batch,
        "busy_fraction": simulated.busy_fraction,
        "method": simulated.method,
        "cache": None if simulated.cache is None else simulated.cache.model_dump(mode="json"),
    }
    if earlier_outputs is not None:  # in full, as the other was
        own_text = served(earlier_outputs=0, options=options.model_copy(update={"replay": False}))
        before, after = own_text.metrics, simulated.metrics
        console.paragraph(
            f"With the request's own text only: {before.tokens_per_round:.3f} tokens per round and a mean TPOT of "
            f"{milliseconds(before.tpot_s.mean)} ms; with earlier outputs {after.tokens_per_round:.3f} and "
            f"{milliseconds(after.tpot_s.mean)} ms. The texts of {simulated.num_repeated} of "
            f"{count(len(simulated.records), 'request')} begin with the traced prompt of an earlier one, whose output "
            "is then proposed whole."
        )
        content["num_repeated"] = simulated.num_repeated
        content["own_text_metrics"] = own_text.metrics.model_dump(mode="json")
    if asked.timeline is not None:
        save_timelines(asked.timeline, simulated.timelines, together=True)
    draw(asked.plot, "shared_steps", simulated.timelines)
    return content


def _twice(profile: Profile) -> str:
    """Note that every prompt was simulated twice, for a profile whose forwards are not known exactly."""
    from swiftspec.simulator.forward_errors import forward_errors

    known = [f"{role} {percent(error)}" for role, error in forward_errors(profile).of_role.items() if error]
    return f", each twice, with forwards drawn within their known error ({', '.join(known)})" if known else ""


def _show_alone(metrics: Metrics) -> None:
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
    if (tail_s := metrics.tail_s) is not None:
        tail = f"{milliseconds(tail_s.median)} ms ({milliseconds(tail_s.p95)})"
        rows.append(("serial tail of a round on a hit, median (p95)", tail))
    if metrics.hit_fraction is not None:
        rows.append(("rounds without a forward in the tail", percent(metrics.hit_fraction)))
    console.table("Metrics", ("figure", "value"), rows)


def _show_load(load: SimulatedLoad) -> None:
    metrics = load.metrics
    latencies = {
        "TTFT": metrics.ttft_s,
        "TPOT": metrics.tpot_s,
        "between chunks": metrics.itl_s,
        "end to end": metrics.e2el_s,
        "wait for admission": metrics.queued_s,
    }
    show_latencies("Latencies in ms", latencies)
    rows = [
        *throughput(metrics),
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
    console.table("Load", ("figure", "value"), [*rows, *attained(metrics)])
