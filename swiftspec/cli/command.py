"""A verb of the command line, made from a dataclass: its fields are the options, its docstring is the help."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["command"]


def command(options: type, function: str) -> Callable[..., None]:
    """A function for typer that passes its options, as one object, to a function of this package's command line.

    options: a frozen dataclass whose fields are annotated with `typer.Option`. function: `module.name` in
    `swiftspec.cli`, imported when the verb is called, so that help is quick.
    """

    def verb(**given: Any) -> None:
        module, _, name = function.partition(".")
        getattr(import_module(f"swiftspec.cli.{module}"), name)(options(**given))

    verb.__doc__ = options.__doc__
    verb.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]  # what typer reads
    return verb
