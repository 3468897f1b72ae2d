"""Options of `swiftspec study adaserve`."""

from typing import Annotated

import typer


def adaserve(
    *,
    figure: Annotated[int, typer.Option(metavar="N", help="Of the paper: 8 (with 9 and 12), 10, 11 or 14.")] = 8,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Target of the experiment: llama-3.1-70b or qwen2.5-32b.")
    ] = "llama-3.1-70b",
    at: Annotated[
        str | None, typer.Option(metavar="X,X,..", help="Points of the figure's axis. Default: all of them.")
    ] = None,
) -> None:
    """AdaServe's serving experiment: published beside simulated.

    Requests of six systems within their limits by rate (figure 8, with 9 and 12), by the share of coding requests (10),
    by the limit of these (11), and where the classes peak in turn (14). A point takes two minutes of one core. Four
    constants of host time are fitted, to llama-3.1-70b at rates up to 4 requests/s; all else is predicted. Exit code 1
    if figure 8 of that model at 4.2 or 4.8 requests/s does not come out: AdaServe first of the six and within 15
    points, and at 4.2 the others in the published order.

    \b
    Example:
      swiftspec study adaserve --figure 10 --model qwen2.5-32b --at 20,90
    """
    from swiftspec.studies.adaserve.command import adaserve as check

    if not check(figure, model, at):
        raise typer.Exit(1)
