"""What the user sees: the one module that prints. Rich on a terminal, plain text in a pipe; results go to stdout,
progress, notes and errors to stderr.

Much of it was written by others: models, prompts, files, other nodes. So no control character reaches a terminal, see
`harmless`. A result in a pipe is exact to the byte.
"""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["Progress", "error", "harmless", "heading", "note", "progress", "say", "stream", "table"]

_SHOWN_AFTER_S = 1.0
_PLAIN_EVERY_S = 10.0
# Control characters (C0 but tab and line feed, delete, C1), separators that some take for line ends, what reorders the
# text around it (bidirectional embeddings, overrides and isolates), and halves of surrogate pairs.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Progress(Protocol):
    """How long work reports that `done` of `total` steps are behind it, and what comes now."""

    def __call__(self, done: int, total: int, what: str, /) -> None: ...


def harmless(text: str) -> str:
    """Text for a terminal: what could steer it (escape sequences, for one) is spelt out, as in `\\x1b[31m`."""
    return _HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def _in_one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def say(text: str = "") -> None:
    """A line of the result."""
    stream(f"{text}\n")


def stream(text: str) -> None:
    """A piece of the result, as it comes; exact in a pipe."""
    _write(sys.stdout, harmless(text) if sys.stdout.isatty() else text)


def note(text: str) -> None:
    """A line beside the result."""
    _write(sys.stderr, f"{harmless(text)}\n")


def error(message: object) -> None:
    """One sentence on what went wrong."""
    note(f"swiftspec: error: {_in_one_line(str(message))}")


def heading(text: str) -> None:
    """A title over what follows, in one line."""
    text = _in_one_line(text)
    if sys.stdout.isatty():
        _rich(sys.stdout).print(f"\n{text}", style="bold")
    else:
        say(f"\n== {text} ==")


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    num_text_columns: int = 1,
    last_is_text: bool = False,
) -> None:
    """Rows under column titles, the first `num_text_columns`, and perhaps the last, flush left, numbers flush right."""
    title, columns, rows = harmless(title), [*map(harmless, columns)], [[*map(harmless, row)] for row in rows]
    text_columns = {*range(num_text_columns), *([len(columns) - 1] if last_is_text else [])}
    if sys.stdout.isatty():
        _rich_table(title, columns, rows, text_columns)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    say(f"\n{title}")
    for row in (columns, *rows):
        cells = [
            cell.ljust(width) if index in text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say(f"  {'  '.join(cells)}".rstrip())


@contextmanager
def progress(verb: str) -> Iterator[Progress]:
    """A bar on a terminal; otherwise a line now and then, from the second second on."""
    if not sys.stderr.isatty():
        yield _PlainProgress(verb, sys.stderr)
        return
    with _rich_progress() as bar:
        yield _BarProgress(bar, bar.add_task(verb, total=None))


class _PlainProgress:
    def __init__(self, verb: str, file: TextIO) -> None:
        self._verb = verb
        self._file = file
        self._start_s = time.monotonic()
        self._due_s = self._start_s + _SHOWN_AFTER_S

    def __call__(self, done: int, total: int, what: str, /) -> None:
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _PLAIN_EVERY_S
            seconds = now_s - self._start_s
            _write(self._file, f"{self._verb}: {done}/{total} {_in_one_line(what)} ({seconds:.0f} s)\n")


class _BarProgress:
    def __init__(self, bar: "RichProgress", task: "TaskID") -> None:
        self._bar = bar
        self._task = task

    def __call__(self, done: int, total: int, what: str, /) -> None:
        self._bar.update(self._task, completed=done, total=total, description=_in_one_line(what))


def _write(file: TextIO, text: str) -> None:
    file.write(text)
    file.flush()


def _rich(file: TextIO) -> "Console":
    from rich.console import Console

    return Console(file=file, markup=False, highlight=False, emoji=False)


def _rich_progress() -> "RichProgress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=_rich(sys.stderr), transient=True)


def _rich_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: set[int]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="left" if index in text_columns else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    _rich(sys.stdout).print(drawn)
