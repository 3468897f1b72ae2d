"""`swiftspec study backtest`: published results predicted from published inputs, with every error."""

from pathlib import Path

from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.reports.formatting import percent, signed_percent
from swiftspec.studies.backtest.coverage import LEVEL, coverage
from swiftspec.studies.backtest.rows import Backtest, Constant, Row, mean_error, median_error


def backtest(*, loads: Path | None, engine: str | None, jobs: int, plot: Path | None, json_path: Path | None) -> None:
    """Predict, print and save: the shipped sections, or a file of loads as `validate --loads` does."""
    if loads is not None:
        from swiftspec.cli.validate import validate_published
        from swiftspec.cli.verbs.data import ValidateFlags

        validate_published(ValidateFlags(loads=loads, engine=engine, plot=plot, json=json_path))
        return
    if engine is not None:
        raise ValueError(f"--engine is {engine}; it is only for --loads")
    check_outputs(plot=plot, json=json_path)
    from swiftspec.studies.backtest.run import run

    with console.progress("backtest") as progress:
        result = run(num_jobs=jobs, done=progress)
    show_backtest(result)
    if plot is not None:
        from swiftspec.reports.figures import backtest_errors, save_figure

        groups = {
            section.title: [(row.published, row.predicted) for row in section.rows] for section in result.sections
        }
        save_figure(plot, backtest_errors(groups))
    write_json(json_path, _content(result))


def show_backtest(result: Backtest) -> None:
    """Print every row, then the constants, then the summary of errors."""
    for section in result.sections:
        console.table(
            f"{section.title}: {_quality(section.rows)}",
            ("what", "quantity", "published", "predicted", "error", "left out", "source"),
            [_cells(row) for row in section.rows],
            num_text_columns=2,
            last_is_text=True,
        )
    console.table(
        "Constants, and what they were fitted on",
        ("constant", "fitted on", "value", "unit"),
        [_constant_cells(constant) for constant in result.constants],
        num_text_columns=2,
        last_is_text=True,
    )
    for reason, number in result.skipped.items():
        console.paragraph(f"Not predicted: {number} {'load' if number == 1 else 'loads'}, since {reason}")
    console.paragraph()
    console.paragraph(f"All: {_quality(result.rows)}")
    console.paragraph("Left out: the prediction's error when nothing was fitted to the row itself.")
    console.paragraph(_coverage(result.rows))


def _coverage(rows: list[Row]) -> str:
    """Coverage in a sentence."""
    every, *kinds = coverage(rows)
    listed = ", ".join(f"{kind.name} {kind.num_inside} of {kind.num_rows}" for kind in kinds)
    return (
        f"{LEVEL * 100:.0f} % intervals contain {percent(every.share)} of the published figures ({listed}). The "
        "interval of a figure is computed from the errors of the other sources."
    )


def _quality(rows: tuple[Row, ...] | list[Row]) -> str:
    return (
        f"{len(rows)} rows, median error {percent(median_error(rows, left_out=False))}, "
        f"left out {percent(median_error(rows, left_out=True))}, mean {percent(mean_error(rows, left_out=True))}"
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.quantity,
        f"{row.published:.4g}",
        f"{row.predicted:.4g}",
        signed_percent(row.error),
        "" if row.error_leave_one_out is None else signed_percent(row.error_leave_one_out),
        row.source,
    )


def _constant_cells(constant: Constant) -> tuple[str, ...]:
    return constant.name, constant.fitted_on, f"{constant.value:.4g}", constant.unit


def _content(result: Backtest) -> dict[str, object]:
    rows = [
        {
            "name": row.name,
            "quantity": row.quantity,
            "published": row.published,
            "predicted": row.predicted,
            "error": row.error,
            "error_leave_one_out": row.error_leave_one_out,
            "source": row.source,
        }
        for row in result.rows
    ]
    constants = [
        {"name": fact.name, "value": fact.value, "unit": fact.unit, "fitted_on": fact.fitted_on}
        for fact in result.constants
    ]
    summary = {
        title: {
            "rows": len(group),
            "median_error": median_error(group, left_out=False),
            "median_error_leave_one_out": median_error(group, left_out=True),
            "mean_error_leave_one_out": mean_error(group, left_out=True),
        }
        for title, group in [("all", result.rows), *((s.title, list(s.rows)) for s in result.sections)]
    }
    inside = {found.name: {"rows": found.num_rows, "inside": found.num_inside} for found in coverage(result.rows)}
    return {
        "rows": rows,
        "constants": constants,
        "summary": summary,
        "coverage": {"level": LEVEL} | inside,
        "skipped": dict(result.skipped),
    }
