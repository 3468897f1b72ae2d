"""`swiftspec study atts`: asynchronous test-time scaling over two servers, run or simulated."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftspec.artifacts.distributions import Lengths
from swiftspec.artifacts.load_metrics import Percentiles
from swiftspec.cli import console
from swiftspec.cli.load_test import read_api_key
from swiftspec.cli.outputs import check_outputs, saved
from swiftspec.errors import FieldError
from swiftspec.reports.formatting import count, percent
from swiftspec.studies.atts.conformal import expected_share
from swiftspec.studies.atts.document import AttsOptions, AttsRun
from swiftspec.studies.atts.scaling import AttsServer, drawn_scripts, simulate_atts
from swiftspec.studies.atts.scaling import atts as sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files and addresses, as given by flags."""

    questions: Path | None
    plan: Path | None
    draft_plan: Path | None
    url: str | None
    draft_url: str | None
    api_key_file: Path | None
    calibration: Path | None
    replay: Path | None
    json: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What else is given by flags. options: fields of `AttsOptions`."""

    options: dict[str, object]
    is_simulated: bool
    lengths: str | None
    limit: int | None


def atts(files: Files, asked: Asked) -> AttsRun:
    """Run or simulate, print and save."""
    inputs = {
        "--questions": files.questions,
        "--plan": files.plan,
        "--draft-plan": files.draft_plan,
        "--calibration": files.calibration,
        "--replay": files.replay,
    }
    check_outputs(inputs=inputs, json=files.json)
    replayed = None if files.replay is None else AttsRun.load(files.replay)
    options = _options(asked, replayed)
    calibration = None if files.calibration is None else AttsRun.load(files.calibration)
    if asked.is_simulated:
        run = _simulated(files, asked, options, replayed, calibration)
    else:
        run = _sampled(files, asked, options, calibration)
    _show(run)
    if files.json is not None:
        run.save(files.json)
        console.say(saved(files.json))
    return run


def _options(asked: Asked, replayed: AttsRun | None) -> AttsOptions:
    """Those of the flags, and for the others those of the run that is replayed, or the usual ones."""
    usual = {} if replayed is None else replayed.options.model_dump()
    given = {name: value for name, value in asked.options.items() if value is not None}
    try:
        return AttsOptions.checked(usual | given, source="options")
    except ValueError as error:
        field, _, wrong = str(error).removeprefix("options: ").partition(" is ")
        raise FieldError(field, wrong) from None


def _sampled(files: Files, asked: Asked, options: AttsOptions, calibration: AttsRun | None) -> AttsRun:
    for flag, value in {"--replay": files.replay, "--lengths": asked.lengths}.items():
        if value is not None:
            raise ValueError(f"{flag} is {value}; it is only for --simulate")
    if files.questions is None:
        raise ValueError("--questions is missing; expected JSON lines with `prompt`")
    key = read_api_key(files.api_key_file)
    return sample(
        files.questions,
        target=_server("--plan", files.plan, "--url", files.url, key),
        draft=_server("--draft-plan", files.draft_plan, "--draft-url", files.draft_url, key),
        options=options,
        calibration=calibration,
        limit=asked.limit,
        stages=console.progress,
    )


def _server(plan_flag: str, plan: Path | None, url_flag: str, url: str | None, api_key: str) -> AttsServer:
    if (plan is None) == (url is None):
        given = "both are given" if plan else "neither is given"
        raise ValueError(f"{plan_flag}, {url_flag}: {given}; expected a plan to run here, or a server's address")
    return AttsServer(plan=plan, url=url, api_key=api_key)


def _simulated(
    files: Files, asked: Asked, options: AttsOptions, replayed: AttsRun | None, calibration: AttsRun | None
) -> AttsRun:
    from swiftspec.studies.atts.scripts import Drawing, replayed_scripts

    if files.plan is None or files.draft_plan is None:
        raise ValueError("--simulate needs --plan and --draft-plan")
    if replayed is not None:
        scripts = replayed_scripts(replayed, seed=options.seed)
        scripts = scripts._replace(questions=scripts.questions[: asked.limit])
    else:
        if files.questions is None:
            raise ValueError("--questions is missing; expected JSON lines with `prompt`, or --replay of a run")
        lengths = Lengths.parse(asked.lengths or f"fixed:{options.draft_tokens}", field="lengths")
        drawing = Drawing(draft_lengths=lengths, target_lengths=lengths)
        scripts = drawn_scripts(files.questions, files.plan, options=options, drawing=drawing, limit=asked.limit)
    return simulate_atts(
        scripts,
        target=files.plan,
        draft=files.draft_plan,
        options=options,
        calibration=calibration,
        stages=console.progress,
    )


def _show(run: AttsRun) -> None:
    figures, options = run.figures, run.options
    what = "Simulated" if run.is_simulated else "Sampled"
    how = "with a barrier" if options.is_barrier else "without a barrier"
    console.paragraph(
        f"{what} {count(len(run.questions), 'question')}, {options.num_samples} samples each, {how}: {run.draft} "
        f"writes, {run.target} scores and takes over {percent(options.budget)}."
    )
    times = {"sample": figures.sample_s, "question": figures.question_s}
    console.table(
        "Times in s, from the question",
        ("of a", "mean", "p50", "p95"),
        [(name, *_cells(times[name])) for name in times],
    )
    console.table("Turns", ("figure", "value"), list(_turns(run)))


def _turns(run: AttsRun) -> Iterator[tuple[str, str]]:
    figures = run.figures
    yield "turns of a sample, mean", f"{figures.turns:.2f}"
    yield "samples by turn", " ".join(map(str, figures.survivors))
    yield "turns taken over", f"{percent(figures.taken_over)} ({_expected(run)})"
    yield "tokens of a segment", f"{figures.draft_tokens:.0f} of the draft, {figures.target_tokens:.0f} of the target"
    if run.threshold is not None:
        yield "threshold", f"{run.threshold:.3f}"
    yield "all questions", f"{figures.total_s:.1f} s"


def _expected(run: AttsRun) -> str:
    """Share of the turns that would be taken over if all scores were exchangeable."""
    options = run.options
    if options.is_barrier:
        return f"budget {percent(options.budget)}"
    sizes = [len(scores) for scores in run.calibration.values()]
    num_scores = max(sizes) if options.is_per_question else sum(sizes)
    return f"{percent(expected_share(num_scores, options.budget, options.rule))} expected of exchangeable scores"


def _cells(values: Percentiles) -> tuple[str, ...]:
    return tuple(f"{value:.2f}" for value in (values.mean, values.p50, values.p95))
