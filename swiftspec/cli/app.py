"""The command line: verbs, flags, exit codes. Every verb imports its module when it is called, so that help is quick.

Exit codes: 0; 2 for a mistake of the user's (one sentence on stderr); 3 if a process of the engine died; 130 for
Ctrl-C; 143 for SIGTERM; 129 for SIGHUP; 1 for a closed pipe, or a study's check that does not hold. Anything else is a
bug of ours and prints a traceback.
"""

from __future__ import annotations  # older releases of typer do not have the exception that is only named here

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from swiftspec.cli import console, study
from swiftspec.cli.command import Group, VerbGroups, command, flag_of
from swiftspec.cli.renamed import renewed
from swiftspec.cli.verbs import data, plans
from swiftspec.engine.process.interrupts import ending_signals_raised, exit_code
from swiftspec.errors import EngineError, FieldError, extras_named
from swiftspec.files.reading import brief
from swiftspec.version import __version__

_TRACEBACK = "SWIFTSPEC_TRACEBACK"
_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

app = typer.Typer(
    name="swiftspec",
    cls=VerbGroups,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def usage_sentence(error: typer.TyperException) -> str:
    """Typer's own sentence, except for an invalid value: `--devices is '0'; expected 1 or more`."""
    problems = getattr(error.__cause__ or error.__context__, "errors", None)  # pydantic's, which is not imported here
    parameter = getattr(error, "param", None)
    if problems is None or parameter is None or not parameter.opts:
        return error.format_message()
    problem = problems()[0]
    return f"{parameter.opts[0]} is {problem['input']!r}; {_expected(problem['msg'])}"


def _expected(message: str) -> str:
    """Pydantic's message, shortened to what was expected."""
    message = message.removeprefix("Value error, ").rstrip(".").replace("greater than or equal to", "at least")
    if message.startswith("Input should be "):
        return f"expected {message.removeprefix('Input should be ').partition(',')[0]}"
    _, is_choice, choices = message.partition(" is not one of ")
    return f"expected one of {choices.replace(chr(39), '')}" if is_choice else message


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. While it runs, SIGTERM and SIGHUP end it as Ctrl-C does."""
    console.begin()
    if sys.stdout is None:
        console.error("stdout is closed; expected it open, or redirected to /dev/null")
        return 2
    with ending_signals_raised(), console.warnings_shown("swiftspec"):
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with extras_named(needed_by="this command"):
            given = renewed(sys.argv[1:] if arguments is None else arguments)
            code = app(args=given, prog_name="swiftspec", standalone_mode=False)
    except typer.TyperException as error:
        console.error(usage_sentence(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except (ValueError, OSError, EngineError, ImportError, MemoryError) as error:
        if os.environ.get(_TRACEBACK):
            raise
        console.error(_sentence(error))
        return 2 if isinstance(error, ValueError | OSError) else 3
    return _interrupted() if code == 130 else code or int(console.reader_has_gone())


def _sentence(error: Exception) -> object:
    """The error's message, naming the file or stream if there is one."""
    if isinstance(error, FieldError):
        return error.named(flag_of(error.field))
    if isinstance(error, ValueError):
        return error
    if isinstance(error, ImportError | MemoryError):  # the first is a library's that does not fit into memory
        return f"out of memory, or a library cannot be loaded ({brief(error) or type(error).__name__})"
    if not isinstance(error, OSError):
        return error
    if error.filename is None and error.errno in _WRITING:
        # Every other output's error names its file; that of the parser's help does not.
        console.abandon(sys.stdout)
        return f"stdout: cannot be written ({error.strerror})"
    return f"{error.filename}: {error.strerror}" if error.filename else error


def _interrupted() -> int:
    console.note("swiftspec: interrupted")
    return exit_code()


def _print_version(wanted: bool) -> None:
    if wanted:
        console.say(f"swiftspec {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Plan, run and validate low-latency LLM decoding.

    profile -> trace -> plan -> run -> validate. Each writes a file for the next; every number says what it rests on.
    An output file named - is stdout; messages then go to stderr.

    \b
    Example:
      swiftspec demo
    """
    if context.invoked_subcommand is None:
        console.say(context.get_help())


# Verb: its group in the help, its options, and the function that runs it.
_VERBS: dict[str, tuple[Group, type, str]] = {
    "profile": (Group.MEASURE, data.ProfileFlags, "profile.profile"),
    "trace": (Group.MEASURE, data.TraceFlags, "trace.trace"),
    "plan": (Group.DECIDE, plans.PlanFlags, "plan.plan"),
    "simulate": (Group.DECIDE, plans.SimulateFlags, "simulate.simulate"),
    "run": (Group.USE, plans.RunFlags, "run.run"),
    "serve": (Group.USE, plans.ServeFlags, "serve.serve"),
    "export": (Group.USE, plans.ExportFlags, "export.export"),
    "validate": (Group.CHECK, data.ValidateFlags, "validate.validate"),
    "loadtest": (Group.CHECK, data.LoadTestFlags, "load_test.load_test"),
    "advise": (Group.CHECK, data.AdviseFlags, "advise.advise"),
    "workload": (Group.DATA, data.WorkloadFlags, "workload.workload"),
    "demo": (Group.MORE, plans.DemoFlags, "demo.demo"),
    "import": (Group.DATA, data.ImportFlags, "importing.import_files"),
    "list": (Group.DATA, data.ListFlags, "listing.list_names"),
}
for _verb, (_group, _options, _function) in _VERBS.items():
    app.command(_verb, rich_help_panel=_group)(command(_options, _function))
app.command("inflate", hidden=True)(command(data.InflateFlags, "inflate.inflate"))
study.register(app)
