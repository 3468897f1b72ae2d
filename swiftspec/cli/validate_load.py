"""`swiftspec validate --load`: serves many requests, and compares predicted with measured."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swiftspec.api.validating import validate_load as compare
from swiftspec.artifacts.load_metrics import LoadMetrics, Percentiles
from swiftspec.artifacts.load_report import LoadReport, PolicyLoad
from swiftspec.artifacts.planned import Planned
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.limits import Limits, load_options, read_load
from swiftspec.cli.load_test import read_api_key
from swiftspec.cli.outputs import draw, read_plan
from swiftspec.cli.served import engine_here
from swiftspec.cli.verbs.data import ValidateFlags
from swiftspec.devices.contention import watch_contention
from swiftspec.reports.formatting import count, milliseconds, percent, signed_percent, speed

_LATE_S = 0.01
# Figures, and the fields of their errors; a latency is in the same field of the metrics, with its unit.
_LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "E2E": "e2el"}
_FIELDS = {**_LATENCIES, "tokens/s": "output_throughput"}


def validate_load(asked: ValidateFlags, load: str, limits: Limits) -> None:
    refuse(asked, ("repeats", "max_new_tokens"), "with --load, every request runs once, in its own length")
    if asked.url is not None:
        refuse(asked, ("plot",), "a server's steps are not known, so there is nothing to draw")
    plan, prompts = plan_and_prompts(asked)
    planned = Planned.of(read_plan(asked, plan), plan)
    workload, _ = read_load(load, planned)
    sent: dict[str, Any] = {
        "policies": policy_names(asked.policies),
        "seed": asked.seed,
        "limit": asked.num_prompts,
        "stages": console.progress,
    }
    if (served := planned.profile.served) is not None and asked.url is None:
        from swiftspec.api.validating_served import validate_served

        here = engine_here(served.engine, device=planned.profile.device, python=asked.python, options=served.options)
        report = validate_served(planned, workload, prompts, here=here, freeze=asked.freeze, **sent)
        show_load_report(report)
    else:
        options, api_key = load_options(limits), read_api_key(asked.api_key_file)
        with watch_contention() as contention:
            compared = compare(planned, workload, prompts, options=options, url=asked.url, api_key=api_key, **sent)
        report = compared.report
        show_load_report(report)
        if contention.is_busy:
            console.paragraph(f"Other processes took {percent(contention.others_share)} of the cores meanwhile")
        draw(asked.plot, "shared_steps_compared", compared.simulated, compared.measured)
    if asked.json is not None:
        report.save(asked.json)


def plan_and_prompts(asked: ValidateFlags) -> tuple[Path, Path]:
    """Both files; ValueError naming the flag of one that is not given."""
    if asked.plan is None or asked.prompts is None:
        missing = "--plan" if asked.plan is None else "--prompts"
        raise ValueError(f"{missing} is missing; expected a plan and prompts, --loads or --speeds")
    return asked.plan, asked.prompts


def policy_names(text: str) -> list[str] | None:
    """`serial_chain,swiftspec` as a list; None for all."""
    return None if text == "all" else [name.strip() for name in text.split(",")]


def show_load_report(report: LoadReport) -> None:
    """Print predicted against measured: means with their errors, and percentiles."""
    is_retraced = any(policy.retraced for policy in report.policies)
    again = ("re-timed", "re-traced") if is_retraced else ("re-timed",)
    means = ("policy", "figure", "predicted", *again, "measured", "error", *again)
    rows = [row for policy in report.policies for row in _means(policy, len(again))]
    console.table("Predicted against measured under load: means, in ms", means, rows, num_text_columns=2)
    tails = ("policy", "figure", *(f"{share} {side}" for share in ("p50", "p95", "p99") for side in ("pred.", "meas.")))
    rows = [row for policy in report.policies for row in _percentiles(policy)]
    console.table("Percentiles, in ms", tails, rows, num_text_columns=2)
    has_retimed = any(policy.retimed for policy in report.policies)
    console.paragraph()
    at_once = report.replicas.at_once(report.max_running)
    console.paragraph(
        f"{count(report.num_requests, 'request')} under {report.workload}, {at_once}; every request once."
        + " Re-timed: simulated again with the step latencies during the measurement." * has_retimed
    )
    for policy in report.policies if is_retraced else ():
        console.paragraph(_acceptance(policy))
    errors = [f"{name} {_median_error(report, name)}" for name in _FIELDS]
    console.paragraph(f"Median errors of the means over policies: {', '.join(errors)}")
    late_s = max(policy.late_s for policy in report.policies)
    if late_s > _LATE_S:
        console.paragraph(f"Requests were submitted up to {milliseconds(late_s)} ms late: the machine was overloaded")


def _median_error(report: LoadReport, name: str) -> str:
    error, again = (report.median_error(_FIELDS[name], retimed=retimed) for retimed in (False, True))
    assert error is not None
    return percent(error) + ("" if again is None else f" (re-timed {percent(again)})")


def _means(policy: PolicyLoad, num_again: int) -> Iterator[tuple[str, ...]]:
    """Rows of a policy. num_again: repeated predictions, with measured step times and with measured acceptance, too."""
    means = (policy.predicted, *(policy.retimed, policy.retraced)[:num_again], policy.measured)
    errors = (policy.error, *(policy.retimed_error, policy.retraced_error)[:num_again])
    for number, (name, field) in enumerate(_FIELDS.items()):
        yield (
            "" if number else policy.policy,
            name,
            *(_mean(metrics, name) if metrics else "" for metrics in means),
            *(signed_percent(getattr(error, field)) if error else "" for error in errors),
        )


def _acceptance(policy: PolicyLoad) -> str:
    """Tokens per round and accepted shares by position, predicted beside measured, a sentence."""
    shares = ", ".join(
        f"{100 * predicted:.0f}/{100 * measured:.0f}"
        for predicted, measured in zip(policy.survival, policy.measured_survival, strict=False)
    )
    predicted, measured = policy.predicted.tokens_per_round, policy.measured.tokens_per_round
    rounds = f"{policy.policy}: {predicted:.2f} tokens per round, measured {measured:.2f}"
    return rounds + (f"; accepted up to each position, in %: {shares}" if shares else "")


def _mean(metrics: LoadMetrics, name: str) -> str:
    return milliseconds(_latency(metrics, name).mean) if name in _LATENCIES else speed(metrics.output_throughput)


def _latency(metrics: LoadMetrics, name: str) -> Percentiles:
    found: Percentiles = getattr(metrics, f"{_LATENCIES[name]}_s")
    return found


def _percentiles(policy: PolicyLoad) -> Iterator[tuple[str, ...]]:
    for number, name in enumerate(_LATENCIES):
        before, after = _latency(policy.predicted, name), _latency(policy.measured, name)
        values = (before.p50, after.p50, before.p95, after.p95, before.p99, after.p99)
        yield ("" if number else policy.policy, name, *map(milliseconds, values))
