"""`swiftspec study NAME`: the one door to `swiftspec.studies`, which is imported when a study is asked for.

A study declares its own options, and reads its arguments itself: here they are only passed on.
"""

from collections.abc import Callable, Mapping
from importlib import import_module

import typer

from swiftspec.cli import console
from swiftspec.cli.command import Group

# In the order of the help.
_LINES: Mapping[str, str] = {
    "backtest": "Predict published results from published inputs; show errors.",
    "adaserve": "AdaServe's serving experiment: published beside simulated.",
    "atts": "Sample questions on two servers: asynchronous test-time scaling.",
    "latency": "Latency over loads, and up to which load speculation pays.",
    "tenants": "Layers that fine-tunes of a model share, and their memory.",
    "blockllm": "Serve chains of blocks that fine-tunes share, in simulated time.",
}
_FOLDERS = {"latency": "latency_law"}  # of studies that are not called as theirs
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add `study` to the command line."""
    studies = typer.Typer(rich_markup_mode=None, context_settings=_SETTINGS)
    studies.callback(invoke_without_command=True)(_study)
    for name, line in _LINES.items():
        studies.command(name, help=line, context_settings=_PASSED_ON)(_passing_on(name))
    app.add_typer(studies, name="study", rich_help_panel=Group.MORE)


def _study(context: typer.Context) -> None:
    """Do again, with this package, what others published.

    Each study has options of its own: `swiftspec study backtest --help`.

    \b
    Example:
      swiftspec study backtest --json backtest.json
    """
    if context.invoked_subcommand is None:
        console.say(context.get_help())


def _passing_on(name: str) -> Callable[[typer.Context], None]:
    """Command that runs a study with the arguments that it gets."""

    def run(context: typer.Context) -> None:
        from swiftspec import studies

        options = import_module(f"{studies.__name__}.{_FOLDERS.get(name, name)}.options")
        program = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_SETTINGS)
        program.command()(getattr(options, name))  # a function whose parameters are its options
        code = program(args=context.args, prog_name=f"swiftspec study {name}", standalone_mode=False)
        if code:
            raise typer.Exit(code)

    return run
