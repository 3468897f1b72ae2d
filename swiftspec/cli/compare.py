"""`swiftspec compare`: every policy at its best, as predicted and, with `--run`, as measured."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.prompts import read_prompts, spread
from swiftspec.artifacts.report import PolicyReport, Report
from swiftspec.cli import console
from swiftspec.cli.columns import count, percent, shape_of, signed_percent, speed
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.plan import search
from swiftspec.cli.say_drift import regret, say_drift
from swiftspec.devices.contention import Contention, watch_contention
from swiftspec.extras import check_extra
from swiftspec.planner.options import SearchOptions
from swiftspec.policies import policy_class, policy_names
from swiftspec.validation.measuring import measure_plan

__all__ = ["compare", "measuring", "show_comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """Settings of `--run`."""

    prompts: Path
    repeats: int
    limit: int | None


def measuring(prompts: Path | None, *, repeats: int, limit: int | None) -> Measuring:
    """From flags. ValueError without prompts."""
    if prompts is None:
        raise ValueError("--run is given without --prompts; it needs texts to measure on")
    return Measuring(prompts=prompts, repeats=repeats, limit=limit)


def compare(
    *,
    target: str,
    draft: str,
    inflate: str | None,
    dtype: str | None,
    profile: Path,
    trace: Path,
    devices: int | None,
    policies: str,
    seed: int,
    jobs: int,
    measuring: Measuring | None,
    out: Path | None = None,
    plot: Path | None = None,
    json_path: Path | None = None,
    ranks: int | None = None,
) -> None:
    """Plan for every policy, measure if asked to, print and save."""
    inputs: dict[str, Path | str | None] = {
        "--target": target,
        "--draft": draft,
        "--profile": profile,
        "--trace": trace,
        "--prompts": measuring.prompts if measuring else None,
    }
    check_outputs(inputs=inputs, out=out, plot=plot, json=json_path)
    if measuring is not None:
        check_extra("engine", needed_by="--run")
    names = _names(policies)
    planned = search(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        profile=profile,
        trace=trace,
        devices=devices,
        options=SearchOptions(seed=seed, num_jobs=jobs, ranks=ranks),
    )
    made = planned.placed(Path("plan.json"))[0] if out is None else planned.save(out)
    # Regret refers to the choice, so it is always among them.
    candidates = [c for c in made.candidates.values() if c.policy in names or c is made.chosen]
    report, interrupted, contention = None, False, None
    if measuring is not None:
        with watch_contention() as contention:
            report, interrupted = measure_plan(
                made,
                plan_sha256=hashlib.sha256(made.to_bytes()).hexdigest(),
                candidates=candidates,
                source=str(out or profile),
                prompts=spread(read_prompts(measuring.prompts), measuring.limit),
                repeats=measuring.repeats,
                basis=(planned.profile, planned.trace),
                stages=console.progress,
            )
    show_comparison(made, candidates, report, names, contention)
    if plot is not None:
        from swiftspec.reports.figures import save_figure, tournament

        save_figure(plot, tournament(candidates, report))
    write_json(json_path, _content(made, candidates, report))
    if interrupted:
        raise KeyboardInterrupt


def _names(policies: str) -> set[str]:
    known = policy_names()
    if policies == "all":
        return set(known)
    names = {name.strip() for name in policies.split(",")}
    if unknown := names - set(known):
        raise ValueError(f"--policies has {min(unknown)!r}; expected all or some of {', '.join(known)}")
    for name in sorted(names):
        policy_class(name)  # raises if one that was asked for cannot be used
    return names


def show_comparison(
    made: Plan, candidates: Sequence[Candidate], report: Report | None, names: set[str], contention: Contention | None
) -> None:
    """Tables of speeds and of rounds, policies that are missing and why, and how good the predictions were."""
    _show_speeds(candidates, report)
    _show_rounds(candidates, report)
    for reason, number in made.rejected.items():
        if reason.partition(":")[0] in names - made.candidates.keys():
            console.paragraph(f"Missing: {reason} ({count(number, 'shape')})")
    if report is not None:
        console.paragraph()
        console.paragraph(
            f"{report.num_prompts} prompts, {count(len(report.policies[0].repeats), 'repetition')} each. Median error "
            f"over policies {percent(report.median_error)}; predicted and measured order agree with Kendall's tau "
            f"{report.rank_correlation:.2f}."
        )
        console.paragraph(regret(report, contention))
        if (repeatability := report.order_repeatability) is not None:
            total, decided, agreeing = report.decided_pairs
            console.paragraph(
                f"Two repetitions of the measurement agree with tau {repeatability:.2f}. {decided} of {total} pairs of "
                f"policies are ordered alike in all repetitions, {agreeing} of these as predicted"
            )
        say_drift(report)
        if agreement := report.retimed_agreement:
            console.paragraph(f"Re-timed: median error {percent(agreement[1])}, Kendall's tau {agreement[0]:.2f}")
        if agreement := report.retraced_agreement:
            console.paragraph(f"Re-traced: median error {percent(agreement[1])}, Kendall's tau {agreement[0]:.2f}")


def _again(report: Report) -> list[str]:
    """Names of the repeated predictions: with the latencies during measurement, and with the measured texts."""
    is_retraced = any(policy.retraced is not None for policy in report.policies)
    return ["re-timed"] * bool(report.drift) + ["re-traced"] * is_retraced


def _show_speeds(candidates: Sequence[Candidate], report: Report | None) -> None:
    """Predicted speeds and, if there is a report, measured ones with the predictions' errors."""
    columns = ["policy", "split", "tokens/s"]
    if report is not None:
        columns += ["measured", "error", *_again(report)]
    rows = [
        (
            candidate.policy,
            candidate.split,
            speed(candidate.prediction.metrics.figures.tokens_per_s),
            *([] if report is None else _errors(_of(candidate, report), report)),
        )
        for candidate in candidates
    ]
    shapes = [shape_of(candidate) for candidate in candidates]
    console.table("Every policy at its best, fastest first", columns, rows, num_text_columns=2, remarks=shapes)


def _show_rounds(candidates: Sequence[Candidate], report: Report | None) -> None:
    """Tokens per round and how busy the models are; measured if there is a report, otherwise predicted."""
    rows = []
    for candidate in candidates:
        metrics = candidate.prediction.metrics if report is None else _of(candidate, report).measured_metrics
        drafts = metrics.wasted_draft is not None
        rows.append(
            (
                candidate.policy,
                f"{metrics.figures.tokens_per_round:.2f}",
                percent(metrics.target_busy),
                percent(metrics.draft_busy) if drafts else "",
                percent(metrics.wasted_draft) if metrics.wasted_draft is not None else "",
            )
        )
    columns = ("policy", "tokens/round", "target busy", "draft busy", "draft wasted")
    console.table(f"Rounds, as {'predicted' if report is None else 'measured'}", columns, rows)


def _of(candidate: Candidate, report: Report) -> PolicyReport:
    return next(policy for policy in report.policies if policy.policy == candidate.policy)


def _errors(policy: PolicyReport, report: Report) -> list[str]:
    """Measured speed, the prediction's error, and the errors of repeated predictions."""
    retraced = None if policy.retraced_error is None else policy.retraced_error.tokens_per_s
    errors = {"re-timed": policy.retimed_error, "re-traced": retraced}
    again = [errors[name] for name in _again(report)]
    return [
        speed(policy.measured.tokens_per_s),
        signed_percent(policy.error.tokens_per_s),
        *("" if error is None else signed_percent(error) for error in again),
    ]


def _content(made: Plan, candidates: Sequence[Candidate], report: Report | None) -> dict[str, object]:
    content: dict[str, object] = {"chosen": made.chosen.policy, "rejected": made.rejected}
    if report is None:
        policies = [
            {
                "policy": candidate.policy,
                "candidate": candidate.describe(),
                "predicted": candidate.prediction.metrics.figures.model_dump(mode="json"),
                "predicted_metrics": candidate.prediction.metrics.model_dump(mode="json"),
            }
            for candidate in candidates
        ]
        return content | {"policies": policies}
    agreement: dict[str, object] = {
        "kendall_tau": report.rank_correlation,
        "median_error": report.median_error,
        "order_repeatability": report.order_repeatability,
        "decided_pairs": dict(zip(("all", "decided", "as_predicted"), report.decided_pairs, strict=True)),
    }
    if again := report.retimed_agreement:
        agreement |= {"retimed_kendall_tau": again[0], "retimed_median_error": again[1]}
    if again := report.retraced_agreement:
        agreement |= {"retraced_kendall_tau": again[0], "retraced_median_error": again[1]}
    return content | report.model_dump(mode="json") | agreement
