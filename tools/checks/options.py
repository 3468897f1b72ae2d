"""A check's command line, made from the parameters of its function.

`limit: Annotated[int, "prompts"] = 8` is `--limit 8`; a tuple is written with commas, a bool is a flag, and what has no
default is required.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

_EXPECTED = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """ValueError in one sentence, instead of the usage and the end of the process."""
        raise ValueError(message.removeprefix("argument ").replace(": is ", " is ", 1))


def parser_of(function: Callable[..., object], *, prog: str, description: str | None) -> argparse.ArgumentParser:
    """Parser whose namespace holds the function's keyword arguments. Its mistakes are ValueErrors."""
    parser = _Parser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *texts = get_args(hints[name]) if get_origin(hints[name]) is Annotated else (hints[name],)
        _add(parser, "--" + name.replace("_", "-"), kind, " ".join(texts), parameter.default)
    return parser


def _add(parser: argparse.ArgumentParser, flag: str, kind: Any, text: str, default: Any) -> None:
    if kind is bool:
        parser.add_argument(flag, action="store_true", help=text)
        return
    is_required = default is inspect.Parameter.empty
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    notes = [text] if is_required or default is None else [text, f"(default: {shown})"]
    parser.add_argument(
        flag,
        type=lambda given: _read(given, kind),
        required=is_required,
        default=None if is_required else default,
        help=" ".join(filter(None, notes)).replace("%", "%%"),
    )


def _read(given: str, kind: Any) -> Any:
    """An option's value. ArgumentTypeError saying what was expected."""
    if get_origin(kind) is UnionType:
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is tuple:
        return tuple(_read(part, get_args(kind)[0]) for part in given.split(","))
    if get_origin(kind) is Literal:
        if given in get_args(kind):
            return given
        raise argparse.ArgumentTypeError(f"is {given!r}; expected one of {', '.join(get_args(kind))}")
    try:
        return kind(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {given!r}; expected {_EXPECTED[kind]}") from None
