"""What the user sees: the one module that prints. Rich on a terminal, plain text in a pipe; results go to stdout,
progress, notes and errors to stderr."""

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["Progress", "error", "heading", "line_width", "note", "paragraph", "progress", "say", "stream", "table"]

_SHOWN_AFTER_S = 1.0
_PLAIN_EVERY_S = 10.0
_PIPE_COLUMNS = 100
_LEAST_WRAPPED = 24  # columns that a wrapped one has, even where a terminal is narrower


class Progress(Protocol):
    """How long work reports that `done` of `total` steps are behind it, and what comes now."""

    def __call__(self, done: int, total: int, what: str, /) -> None: ...


def say(text: str = "") -> None:
    """A line of the result."""
    stream(f"{text}\n")


def stream(text: str) -> None:
    """A piece of the result, as it comes."""
    _write(sys.stdout, text)


def note(text: str) -> None:
    """A line beside the result."""
    _write(sys.stderr, f"{text}\n")


def error(message: object) -> None:
    """One sentence on what went wrong."""
    note(f"swiftspec: error: {' '.join(str(message).split())}")


def heading(text: str) -> None:
    """A title over what follows."""
    if sys.stdout.isatty():
        _rich(sys.stdout).print(f"\n{text}", style="bold")
    else:
        say(f"\n== {text} ==")


def paragraph(text: str = "", *, indent: str = "") -> None:
    """A sentence of the result, broken between words where the line ends; lines after the first are indented more."""
    say("\n".join(_wrapped(text, line_width(), first=indent, rest=indent + "  " if indent else "")))


def line_width() -> int:
    """Columns of the terminal, or those that a line may have in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_COLUMNS


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    num_text_columns: int = 1,
    last_is_text: bool = False,
    remarks: Sequence[str] = (),
) -> None:
    """Rows under column titles, the first `num_text_columns`, and perhaps the last, flush left, numbers flush right.

    Parameters
    ----------
    last_is_text : bool
        The last column is broken between words where the line ends.
    remarks : sequence of str
        What is said below each row, broken likewise; nothing where it is empty.
    """
    text_columns = {*range(num_text_columns), *([len(columns) - 1] if last_is_text else [])}
    head, *body = _laid_out([columns, *rows], text_columns, wrap_last=last_is_text)
    remarked = [*remarks, *[""] * (len(body) - len(remarks))]
    if not sys.stdout.isatty():
        say(f"\n{title}")
        _say_lines(head)
        for row, remark in zip(body, remarked, strict=True):
            _say_lines(row)
            _say_lines(_remark(remark))
        return
    screen = _rich(sys.stdout)
    screen.print(f"\n{title}", style="bold", soft_wrap=True)
    lines = [line for row in (head, *body) for line in row]
    _say_lines(head)
    say(f"  {'─' * (max(map(len, lines)) - 2)}")
    for row, remark in zip(body, remarked, strict=True):
        _say_lines(row)
        for line in _remark(remark):
            screen.print(line, style="dim", soft_wrap=True)


def _laid_out(rows: Sequence[Sequence[str]], text_columns: set[int], *, wrap_last: bool) -> list[list[str]]:
    """Lines of each row: one, or more where its last column is broken."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    laid: list[list[str]] = []
    for row in rows:
        cells = [
            cell.ljust(width) if index in text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        if not wrap_last:
            laid.append([f"  {'  '.join(cells)}".rstrip()])
            continue
        before = "  ".join(["", *cells[:-1], ""])
        room = max(len(before) + _LEAST_WRAPPED, line_width())
        laid.append(_wrapped(row[-1], room, first=before, rest=" " * len(before)))
    return laid


def _remark(text: str) -> list[str]:
    return _wrapped(text, line_width(), first="    ", rest="    ") if text else []


def _wrapped(text: str, width: int, *, first: str, rest: str) -> list[str]:
    """Lines of a text; a word that is longer than a line stays whole."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.rstrip() for line in lines] or [first.rstrip()]


def _say_lines(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


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
            _write(self._file, f"{self._verb}: {done}/{total} {what} ({now_s - self._start_s:.0f} s)\n")


class _BarProgress:
    def __init__(self, bar: "RichProgress", task: "TaskID") -> None:
        self._bar = bar
        self._task = task

    def __call__(self, done: int, total: int, what: str, /) -> None:
        self._bar.update(self._task, completed=done, total=total, description=what)


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
