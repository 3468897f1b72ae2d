"""Rows of load traces, and checks of their cells."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from swiftspec.artifacts.distributions import MOST_TOKENS
from swiftspec.artifacts.workload import RequestClass
from swiftspec.files.reading import shown

__all__ = ["LoadTraceFormat", "TraceRow", "seconds", "token_count", "with_fields"]

_MOST_DIGITS = 18


class TraceRow(NamedTuple):
    """A row of a load trace.

    where: file and line. time_s: seconds since any moment that all rows of the file share. request_class: of traces
    that have classes of their own. blocks: names of the blocks that the prompt begins with, where others may have them,
    each of block_tokens.
    """

    where: str
    time_s: float
    prompt_tokens: int
    output_tokens: int
    conversation: str | None = None
    request_class: RequestClass | None = None
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0

    @property
    def fault(self) -> str | None:
        """Reason why the row is no request that could be served; None if it is one."""
        if not self.output_tokens:
            return "without output tokens"
        return None if self.prompt_tokens else "without prompt tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTraceFormat:
    """A format of load traces.

    read: rows of a file, one at a time, in its order.
    time_column: name that errors of order use.
    licence: of the published traces in this format, with their source.
    read_in: the same with the unit of its stamps, s or ms, where a file may not tell it.
    """

    read: Callable[[Path], Iterator[TraceRow]]
    time_column: str
    licence: str
    read_in: Callable[[Path, str], Iterator[TraceRow]] | None = None


def token_count(value: object, name: str, where: str) -> int:
    """A number of tokens, which may be 0. ValueError naming place, column and value for anything else."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) <= MOST_TOKENS:
        return int(text)
    raise ValueError(f"{where}: {name} is {shown(value)}; expected a whole number from 0 to {MOST_TOKENS}")


def seconds(value: object, name: str, where: str, *, unit_s: float = 1.0) -> float:
    """A time of 0 or more, in seconds. ValueError naming place, column and value for anything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{where}: {name} is {shown(value)}; expected a number of 0 or more")
    return number * unit_s


def with_fields(value: object, names: Sequence[str], where: str) -> Mapping[str, Any]:
    """A JSON object that has these fields. ValueError naming place and field for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: a JSON {type(value).__name__}; expected an object with {', '.join(names)}")
    for name in names:
        if name not in value:
            raise ValueError(f"{where}: {name} is missing; expected {', '.join(names)}")
    return value
