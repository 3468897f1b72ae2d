"""Errors of misused flags: flag, value and what was expected."""

from __future__ import annotations  # older releases of typer do not have the exception that is only named here

import typer

__all__ = ["usage_sentence"]


def usage_sentence(error: typer.TyperException) -> str:
    """Typer's own sentence, except for an invalid value: `--devices is '0'; expected 1 or more`."""
    problems = getattr(
        error.__cause__ or error.__context__, "errors", None
    )  # pydantic's, which is not imported for this
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
