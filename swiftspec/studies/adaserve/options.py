"""Options of `swiftspec study adaserve`."""

from typing import Annotated

import typer


def adaserve(
    *,
    rates: Annotated[
        str, typer.Option(metavar="R,R,..", help="Requests/s, of those published.")
    ] = "2.6,3.4,4.0,4.2,4.8",
) -> None:
    """AdaServe's serving experiment: published beside simulated.

    Six systems at five rates, ten minutes of one core. Four constants of host time are fitted, on rates up to 4
    requests/s; what is above them is predicted. Exit code 1 if at 4.2 or 4.8 requests/s AdaServe is not the first of
    the six, or its attainment is off by more than ten points, or if at 4.2 the others' order is not the published one.

    \b
    Example:
      swiftspec study adaserve --rates 4.2
    """
    from swiftspec.studies.adaserve.command import adaserve as check

    if not check(rates):
        raise typer.Exit(1)
