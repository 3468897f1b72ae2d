"""Options of the verbs that show the others at work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags

__all__ = ["DemoFlags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFlags:
    """Do all of this on the bundled pair, in a few minutes.

    It times the machine first and does as much as fits the budget. It reports what it left out, how long everything
    took, and whether the machine was busy.

    \b
    Examples:
      swiftspec demo --dir swiftspec-demo --plot
      swiftspec demo --budget-minutes 3
    """

    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder for the files.")] = Path(
        "swiftspec-demo"
    )
    devices: Annotated[int | None, typer.Option(min=1, help="Cores. Default: two, if there are.")] = None
    budget_minutes: Annotated[
        float, typer.Option(min=1, metavar="MIN", help="Time limit; the size of everything is chosen to fit it.")
    ] = 8.0
    plot: Annotated[bool, typer.Option("--plot", help="Also draw figures, in the same folder.")] = False
    json: flags.Json = None
