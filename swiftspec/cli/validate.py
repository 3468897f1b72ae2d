"""`swiftspec validate`: compares predicted with measured, a plan's policies one request at a time, or rows of files."""

from collections.abc import Callable
from pathlib import Path
from statistics import median

from swiftspec.artifacts.gain import Verdict
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import read_profile, read_trace
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.prompts import read_prompts, spread
from swiftspec.artifacts.report import PolicyReport, Report
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.command import refuse, refuse_settings
from swiftspec.cli.outputs import check_files, draw, read_plan, write_json
from swiftspec.cli.settings import SCHEDULER, own_settings
from swiftspec.cli.validate_load import plan_and_prompts, policy_names, validate_load
from swiftspec.cli.verbs.data import ValidateFlags
from swiftspec.devices.contention import Contention, watch_contention
from swiftspec.engines import engine_named
from swiftspec.files.document import file_sha256
from swiftspec.progress import time_limit
from swiftspec.reports.formatting import count, milliseconds, percent, signed_percent, speed
from swiftspec.validation.measuring import measure_plan
from swiftspec.validation.published.comparison import GAIN, Comparison, LeaveOut, frozen
from swiftspec.validation.published.loads import compare_loads
from swiftspec.validation.published.speeds import compare_speeds

_REPEATS = 3
_POSITIONS = 8  # of the draft's tokens whose acceptance is printed
_DRIFT = 0.05  # profiles of one quiet machine differ by less
_TEXTS_DIFFER = 0.02  # of tokens per round; predictions replayed on the measured text are off by less
_MOST_DRIFT = 0.25  # of forwards, in the median over kinds; a quiet machine stays within 0.1
# Figures that a row of the table shows.
_FIRST = ("e2e_mean_ms", "tpot_mean_ms", "ttft_p50_ms", "ttft_mean_ms", "tok_s_user", GAIN)


def regret(report: Report, contention: Contention | None) -> str:
    """Regret of the choice in a sentence, or why it is not given: on a busy machine it is chance."""
    if contention is not None and contention.is_busy:
        share = percent(contention.others_share)
        why = f"other processes took {share} of these cores' time while this was measured"
    elif report.drift and abs(change := median(drift.factor for drift in report.drift) - 1) > _MOST_DRIFT:
        why = f"forwards took {signed_percent(change)} against the profile, in the median over their kinds"
    else:
        (chosen,) = (policy for policy in report.policies if policy.policy == report.chosen)
        return f"Regret of the choice, {chosen.candidate}: {percent(report.regret)}"
    return (
        f"The machine was busy: {why}. These figures do not show which policy is fastest, so the regret of the choice "
        "is not given. Measure again while nothing else runs."
    )


def say_drift(report: Report) -> None:
    """Print how text and machine differ from trace and profile, and how much of the error that explains."""
    if (text := report.text_error) is not None and abs(text) > _TEXTS_DIFFER:
        change = 1 / (1 + text) - 1
        console.paragraph(
            f"Tokens per round were {signed_percent(change)} against the prediction, in the median over policies: "
            f"these prompts are {'easier' if change > 0 else 'harder'} than those traced."
        )
    if (agreement := report.retraced_agreement) is not None:
        errors = [error.tokens_per_round for p in report.policies if (error := p.retraced_error) is not None]
        console.paragraph(
            f"Re-traced, from the measured texts, tokens per round are off by {signed_percent(min(errors))} to "
            f"{signed_percent(max(errors))}, tokens/s by {percent(agreement[1])} in the median."
        )
    if not report.drift:
        return
    factors = [drift.factor - 1 for drift in report.drift]
    console.paragraph(
        f"During the measurement, forwards took {signed_percent(min(factors))} to {signed_percent(max(factors))} "
        "against the profile, by kind. Re-timed predictions account for that, so their errors are the simulator's."
    )


def validate(asked: ValidateFlags) -> None:
    """Compare predicted with measured: of files of others, of a plan under a load, or of a plan's policies alone."""
    if (file := asked.loads or asked.speeds) is not None:
        if asked.plan is not None or asked.prompts is not None:
            raise ValueError(f"--plan and --prompts are of a plan; with {file} expected neither")
        validate_published(asked)
        return
    if asked.engine is not None or asked.leave_out != "none":
        raise ValueError("--engine and --leave-out are only for --loads and --speeds")
    if asked.load is None:
        refuse(asked, ("freeze",), "it needs --loads, --speeds or --load")
    limits = own_settings(asked.settings, SCHEDULER)
    if asked.load is not None:
        validate_load(asked, asked.load, limits)
        return
    refuse(asked, ("url",), "it is only for --load")
    refuse_settings(limits, "it is only for --load")
    validate_plan(asked)


def validate_plan(asked: ValidateFlags, *, stop: Callable[[], bool] | None = None) -> Report:
    """Measure, print and save; `stop` is passed to `measure_plan`.

    On Ctrl-C, report whole repetitions if there are any, then raise KeyboardInterrupt.
    """
    plan, prompts = plan_and_prompts(asked)
    made = read_plan(asked, plan)
    with watch_contention() as contention:
        report, interrupted = measure_plan(
            made,
            plan_sha256=file_sha256(plan),
            candidates=made.select(policy_names(asked.policies)),
            source=str(plan),
            prompts=spread(read_prompts(prompts), asked.num_prompts),
            repeats=_REPEATS if asked.repeats is None else asked.repeats,
            max_new_tokens=asked.max_new_tokens,
            basis=_basis(made, plan),
            stages=console.progress,
            # Without a limit only if it is said how much to measure.
            stop=stop or (time_limit() if asked.num_prompts is None and asked.repeats is None else None),
        )
    show_report(report, made, contention)
    draw(asked.plot, "predicted_vs_measured", report)
    if asked.json is not None:
        report.save(asked.json)
    if interrupted:
        raise KeyboardInterrupt
    return report


def _basis(made: Plan, plan_path: Path) -> tuple[Profile, AcceptanceTrace] | None:
    """The plan's profile and trace; None, with a note, if they cannot be read."""
    try:
        return read_profile(made, plan_path), read_trace(made, plan_path)
    except ValueError as error:
        console.note(f"Predictions are not re-timed: {error}")
        return None


def show_report(report: Report, made: Plan, contention: Contention | None = None) -> None:
    columns = ("policy", "split", "figure", "predicted", "measured", "error")
    rows, shapes = [], []
    for policy in report.policies:
        of_policy = _rows(policy)
        rows += of_policy
        shapes += [*[""] * (len(of_policy) - 1), policy.candidate.partition(" (")[2].removesuffix(")")]
    console.table("Predicted against measured", columns, rows, num_text_columns=3, remarks=shapes)
    _show_acceptance(report)
    chosen = next(policy for policy in report.policies if policy.policy == report.chosen)
    metrics = chosen.measured_metrics
    console.paragraph()
    console.paragraph(
        f"{report.num_prompts} prompts, {count(len(chosen.repeats), 'repetition')} each, for {made.target}; predicted "
        f"from {made.trace.path}. ± is the error's 95 % confidence interval over the choice of prompts."
    )
    say_drift(report)
    plain = next((policy for policy in report.policies if policy.policy == "autoregressive"), None)
    if plain and abs(plain.error.round_s.median) >= _DRIFT:
        change = plain.measured.round_s.median / plain.predicted.round_s.median - 1
        console.paragraph(
            f"Autoregressive rounds, which do not depend on acceptance, took {signed_percent(change)} against the "
            "prediction: the machine is not as it was when profiled. Profile it again while nothing else runs."
        )
    console.paragraph(regret(report, contention))
    if plain and plain is not chosen:
        ratio = chosen.measured.tokens_per_s / plain.measured.tokens_per_s
        console.say(f"Measured speed-up over autoregressive decoding: {ratio:.2f}")
    console.paragraph(
        f"Speed of light: {percent(metrics.light_fraction)} of {speed(metrics.speed_of_light)} tokens/s "
        f"({metrics.figures.tokens_per_round:.2f} tokens per verification of {milliseconds(metrics.verify_s)} ms)"
    )
    if metrics.tail_s is not None:
        share = metrics.tail_s.median / metrics.figures.round_s.median
        tail = milliseconds(metrics.tail_s.median)
        console.paragraph(f"Serial tail of a round on a hit: {tail} ms, {percent(share)} of the round")
    different = [policy.policy for policy in report.policies if not policy.identical_output]
    if different:
        why = "" if made.target.dtype == "float32" else f"; in {made.target.dtype}, near-ties of logits can cause that"
        console.paragraph(f"{_output(made)} differs for {', '.join(different)}{why}")
    else:
        console.say(f"{_output(made)} is the same for all policies, token for token")


def _output(made: Plan) -> str:
    return "Greedy output" if made.sampling.is_greedy else f"Sampled output ({made.sampling})"


def _show_acceptance(report: Report) -> None:
    drafting = [policy for policy in report.policies if policy.measured_metrics.acceptance]
    if not drafting:
        return
    most = min(_POSITIONS, max(len(policy.measured_metrics.acceptance) for policy in drafting))
    rows = []
    for policy in drafting:
        rates = {"predicted": policy.predicted_acceptance, "measured": policy.measured_metrics.acceptance}
        known = [(name, by_position) for name, by_position in rates.items() if by_position]
        for index, (name, by_position) in enumerate(known):
            cells = (f"{rate:.0%}" for rate in by_position[:most])
            rows.append(("" if index else policy.policy, name, *cells, *[""] * (most - len(by_position))))
    console.paragraph()
    columns = ("policy", "", *map(str, range(1, most + 1)))
    console.table("Rounds that accept at least 1, 2, .. draft tokens", columns, rows, num_text_columns=2)


def _rows(report: PolicyReport) -> list[tuple[str, ...]]:
    predicted, measured, error = report.predicted, report.measured, report.error
    margin = "" if report.error_margin is None else f" ± {percent(report.error_margin)}"
    speeds = [("tokens/s", predicted, signed_percent(error.tokens_per_s) + margin)]
    if report.retimed is not None and report.retimed_error is not None:
        speeds.append(("re-timed", report.retimed, signed_percent(report.retimed_error)))
    if report.retraced is not None and report.retraced_error is not None:
        speeds.append(("re-traced", report.retraced, signed_percent(report.retraced_error.tokens_per_s)))
    rounds_ms = [milliseconds(figures.round_s.median) for figures in (predicted, measured)]
    tokens = [f"{figures.tokens_per_round:.2f}" for figures in (predicted, measured)]
    rows = [
        *((name, speed(of.tokens_per_s), speed(measured.tokens_per_s), wrong) for name, of, wrong in speeds),
        ("round ms", *rounds_ms, signed_percent(error.round_s.median)),
        ("tokens/round", *tokens, signed_percent(error.tokens_per_round)),
    ]
    name, _, split = report.candidate.partition(" (")[0].partition(" ")
    return [((name, split) if row is rows[0] else ("", "")) + row for row in rows]


def validate_published(asked: ValidateFlags) -> None:
    loads, speeds = asked.loads, asked.speeds
    if loads is not None and speeds is not None:
        raise ValueError(f"--loads is {loads} and --speeds is {speeds}; expected one of them")
    file = loads or speeds
    assert file is not None, "one of them is given"
    check_files(asked)
    named = None if asked.engine is None else engine_named(asked.engine)
    compare = compare_loads if loads else compare_speeds
    with console.progress("validate") as progress:
        found = compare(file, engine=named, leave_out=LeaveOut(asked.leave_out), done=progress)
    show_comparison(found, f"{'Loads' if loads else 'Speeds'} of {file.name}")
    pairs: dict[str, list[tuple[float, float]]] = {}
    for index, row in enumerate(found.rows):
        for figure in row.figures if index not in found.failed else ():
            if figure.name in _FIRST:
                pairs.setdefault(_words(figure.name), []).append((figure.measured, figure.predicted))
    draw(asked.plot, "backtest_errors", pairs)
    write_json(asked.freeze, frozen(found))
    write_json(asked.json, found.content())


def show_comparison(found: Comparison, title: str) -> None:
    names = [name for name in _FIRST if any(figure.name == name for row in found.rows for figure in row.figures)]
    rows = []
    for number, row in enumerate(found.rows, 1):
        by_name = {figure.name: figure for figure in row.figures}
        cells = [
            f"{by_name[name].predicted:.4g} / {by_name[name].measured:.4g} ({signed_percent(by_name[name].error)})"
            if name in by_name
            else ""
            for name in names
        ]
        remark = row.left_out or ("overloaded" if row.overloaded else "")
        rows.append((str(number), row.cells.get("model", row.cells.get("target", "")), row.kind, *cells, remark))
    columns = ("row", "model", "class", *(f"{_words(name)}: predicted / measured" for name in names), "")
    console.table(title, columns, rows, num_text_columns=3, last_is_text=True)
    summary = found.summary()
    console.table(
        "Errors",
        ("rows of", "figure", "rows", "median", "mean", "nine of ten", "worst", "bias", "in 90 % interval"),
        [
            (
                group,
                _words(name),
                str(errors["rows"]),
                *(percent(errors[which]) for which in ("median", "mean", "nine_of_ten", "worst")),
                signed_percent(errors["bias"]),
                percent(errors["inside_90_percent_interval"]),
            )
            for group, by in summary["errors"].items()
            for name, errors in by.items()
            if name in names
        ],
        num_text_columns=2,
    )
    if calls := summary["calls"]:
        columns = ("source", *(f"{measured}: {verdict}" for measured in ("gains", "losses") for verdict in Verdict))
        counts = [
            (source, *(str(number) for by in measured.values() for number in by.values()))
            for source, measured in calls.items()
        ]
        console.table("Measured gains and losses by drafting, and what was predicted", columns, counts)
    covered = (f"{name or 'no class'} {of['predicted']} of {of['rows']}" for name, of in summary["coverage"].items())
    console.paragraph(f"Predicted rows: {', '.join(covered)}.")
    for reason, number in summary["left_out"].items():
        console.paragraph(f"Not predicted: {count(number, 'row')}, since {reason}")
    limits = sorted({row.limits for row in found.rows if row.limits})
    if limits:
        console.paragraph(f"Limits: {'; '.join(limits)}")
    if found.leave_out is not LeaveOut.NONE:
        console.paragraph(f"Each row was predicted with constants that were fitted without its {found.leave_out}.")


def _words(name: str) -> str:
    """`e2e_mean_ms`: mean E2E, ms."""
    kind, _, which = name.removesuffix("_ms").partition("_")
    if not name.endswith("_ms"):
        return {"tok_s_user": "tokens/s of a user", GAIN: "gain over plain"}.get(name, name)
    return f"{which or 'mean'} {kind.upper()}, ms"
