"""Options of `swiftspec study backtest`."""

from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags


def backtest(
    *,
    loads: Annotated[
        Path | None, typer.Option(metavar="FILE", hidden=True, help="The same as validate --loads.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME[@RELEASE]", hidden=True, help="With --loads: engine of rows that name none."),
    ] = None,
    jobs: flags.Jobs = -1,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Predict published results from published inputs; show errors.

    \b
    Example:
      swiftspec study backtest --json backtest.json
    """
    from swiftspec.studies.backtest.command import backtest as predict

    predict(loads=loads, engine=engine, jobs=jobs, plot=plot, json_path=json)
