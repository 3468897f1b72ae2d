"""`swiftspec validate --loads FILE` and `--speeds FILE`: measurements of others, or one's own, against predictions."""

from swiftspec.artifacts.gain import Verdict
from swiftspec.cli import console
from swiftspec.cli.outputs import check_files, draw, write_json
from swiftspec.cli.verbs.data import ValidateFlags
from swiftspec.engines import engine_named
from swiftspec.reports.formatting import percent, signed_percent
from swiftspec.validation.published.comparison import GAIN, Comparison, LeaveOut, frozen
from swiftspec.validation.published.loads import compare_loads
from swiftspec.validation.published.speeds import compare_speeds

# Figures that a row of the table shows.
_FIRST = ("e2e_mean_ms", "tpot_mean_ms", "ttft_p50_ms", "ttft_mean_ms", "tok_s_user", GAIN)


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
            (source, *(str(count) for by in measured.values() for count in by.values()))
            for source, measured in calls.items()
        ]
        console.table("Measured gains and losses by drafting, and what was predicted", columns, counts)
    covered = (f"{name or 'no class'} {of['predicted']} of {of['rows']}" for name, of in summary["coverage"].items())
    console.paragraph(f"Predicted rows: {', '.join(covered)}.")
    for reason, count in summary["left_out"].items():
        console.paragraph(f"Not predicted: {count} {'row' if count == 1 else 'rows'}, since {reason}")
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
