"""A verb of the command line, made from a dataclass: its fields are the options, its docstring is the help.

Options that do not go together are refused here, too.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from swiftspec.errors import FieldError

__all__ = ["command", "refuse", "refuse_settings"]


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


def refuse(asked: Any, names: Iterable[str], why: str) -> None:
    """FieldError, with the reason, for the first of these options that is given: that is not as it usually is.

    asked: options, as `command` makes them.
    """
    usual = {option.name: option.default for option in fields(asked)}
    for name in names:
        if (value := getattr(asked, name)) != usual[name]:
            raise FieldError(name, ", ".join(value) if isinstance(value, list) else value, why)


def refuse_settings(given: Mapping[str, object], why: str) -> None:
    """ValueError, with the reason, for the first of these settings."""
    for name, value in given.items():
        raise ValueError(f"--set {name} is {value}; {why}")
