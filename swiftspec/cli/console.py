"""Console output: the one module that prints. Styled on a terminal, plain text in a pipe; results go to stdout,
progress, notes and errors to stderr.

Much of the text comes from models, prompts, files and other nodes, so no control character reaches a terminal, see
`harmless`. A result in a pipe is exact, except for characters that the encoding of stdout does not have.
"""

import io
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from swiftspec.cli.table_layout import lay_out, wrapped
from swiftspec.files.writing import write_output
from swiftspec.progress import Progress

_SHOWN_AFTER_S = 1.0
_PLAIN_EVERY_S = 10.0
_PIPE_COLUMNS = 100
_BOLD, _DIM, _USUAL = "\x1b[1m", "\x1b[2m", "\x1b[0m"
# Control characters (C0 except tab and line feed, delete, C1), separators that some programs take for line ends,
# characters that reorder text (bidirectional embeddings, overrides and isolates), and halves of surrogate pairs.
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(slots=True)
class _State:
    """Whether stdout carries a file's bytes (`--json -`), so that text for people goes to stderr; and has lost its
    reader, as in `swiftspec plan ... | head`. And what is kept of the result to be cut short.
    """

    stdout_is_data: bool = False
    reader_has_gone: bool = False
    kept: "_Kept | None" = None


_STATE = _State()


def begin() -> None:
    """Reset the state, and make the standard streams safe to use.

    If stdin, stdout or stderr is closed, its file number is taken by /dev/null, so that no file opened later gets it.
    Characters that stdout's encoding does not have (in an old locale) are escaped, so that a model's output cannot end
    a run.
    """
    _STATE.stdout_is_data = _STATE.reader_has_gone = False
    _STATE.kept = None
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number


def keep_stdout_for_data() -> None:
    """Write results to stderr from now on: an output is written to stdout."""
    _STATE.stdout_is_data = True


def reader_has_gone() -> bool:
    """Whether nobody reads stdout any more, and results were discarded."""
    return _STATE.reader_has_gone


def harmless(text: str) -> str:
    """Text for a terminal, with control characters (such as those of escape sequences) spelt out: `\\x1b[31m`."""
    return _HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def _in_one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def say(text: str = "") -> None:
    """Print a line of the result. Without a reader it is discarded: files are still to be written."""
    with _results() as file:
        _put(file, f"{text}\n")


def stream(text: str) -> None:
    """Print a piece of the result at once; exact in a pipe. BrokenPipeError if it has no reader any more."""
    with _results(needs_reader=True) as file:
        _put(file, text)


def _put(file: TextIO, text: str) -> None:
    file.write(harmless(text) if file.isatty() else text)
    file.flush()


def note(text: str) -> None:
    """Print a line to stderr, apart from the result."""
    _write(sys.stderr, f"{harmless(text)}\n")


def error(message: object) -> None:
    """Print an error in one sentence."""
    note(f"swiftspec: error: {_in_one_line(str(message))}")


@contextmanager
def warnings_shown(logger: str) -> Iterator[None]:
    """Inside the context, print that logger's warnings and errors to stderr, one line each."""
    handler = _Notes(logging.WARNING)
    log = logging.getLogger(logger)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(f"swiftspec: {' '.join(record.getMessage().split())}")


def heading(text: str) -> None:
    say()
    _say_styled(_in_one_line(text), _BOLD, plain="== {} ==")


def paragraph(text: str = "", *, indent: str = "") -> None:
    """Print a sentence of the result, wrapped between words; lines after the first are indented more."""
    say("\n".join(wrapped(text, line_width(), first=indent, rest=indent + "  " if indent else "")))


def fields(**values: object) -> None:
    """Print a line for each name and value, values aligned; wrapped like a paragraph."""
    longest = max(map(len, values))
    for name, value in values.items():
        say("\n".join(wrapped(str(value), line_width(), first=name.ljust(longest + 2), rest=" " * (longest + 2))))


def line_width() -> int:
    """Columns of the terminal, or the longest line for a pipe."""
    with _results() as file:
        return shutil.get_terminal_size().columns if file.isatty() else _PIPE_COLUMNS


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    num_text_columns: int = 1,
    last_is_text: bool = False,
    remarks: Sequence[str] = (),
) -> None:
    """Print rows under column titles, wrapped where lines would be longer than `line_width`, see `lay_out`.

    num_text_columns, last_is_text: which are flush left; others hold numbers. remarks: text below each row, if any.
    """
    title, columns, rows = harmless(title), [*map(harmless, columns)], [[*map(harmless, row)] for row in rows]
    remarks = [*map(harmless, remarks)]
    text_columns = {*range(num_text_columns), *([len(columns) - 1] if last_is_text else [])}
    head, *body = lay_out(columns, rows, text_columns=text_columns, width=line_width())
    remarked = [*remarks, *[""] * (len(body) - len(remarks))]
    lines = [line for row in (head, *body) for line in row]
    say()
    for line in wrapped(title, line_width(), rest="  "):
        _say_styled(line, _BOLD)
    say("\n".join(head))
    with _results() as file:
        if file.isatty():
            say(f"  {'─' * (min(line_width(), max(map(len, lines))) - 2)}")
    for row, remark in zip(body, remarked, strict=True):
        say("\n".join(row))
        for line in wrapped(remark, line_width(), first="    ", rest="    ") if remark else ():
            _say_styled(line, _DIM)


def _say_styled(line: str, style: str, *, plain: str = "{}") -> None:
    """Print a line of the result, styled on a terminal. plain: how it is written elsewhere."""
    with _results() as file:
        has_styles = file.isatty() and os.environ.get("TERM") != "dumb"
        file.write(f"{style}{line}{_USUAL}\n" if has_styles else f"{plain.format(line)}\n")
        file.flush()


@contextmanager
def abridged(path: Path, *, most_lines: int) -> Iterator[None]:
    """Keep the result of the context; then print its first lines, and write the whole of it to a file."""
    _STATE.kept = kept = _Kept()
    try:
        yield
    finally:
        _STATE.kept = None
        lines = kept.getvalue().splitlines(keepends=True)
        with _results() as file:
            file.write("".join(lines[:most_lines]))
            file.flush()
        write_output(path, _STYLE.sub("", kept.getvalue()).lstrip("\n").encode(errors="backslashreplace"))
    if len(lines) > most_lines:
        say(f"  .. {len(lines) - most_lines} more lines in {path}")


class _Kept(io.StringIO):
    """A result that is not shown yet, laid out for the stream that will show it."""

    def isatty(self) -> bool:
        file = sys.stderr if _STATE.stdout_is_data else sys.stdout
        return file is not None and file.isatty()


@contextmanager
def progress(verb: str) -> Iterator[Progress]:
    """Show a progress bar on a terminal, otherwise a line now and then, starting after one second."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _plain_progress(verb, sys.stderr)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressBar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    screen = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
    with ProgressBar(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total, what, /: bar.update(task, completed=done, total=total, description=_in_one_line(what))


def _plain_progress(verb: str, file: TextIO | None) -> Progress:
    start_s = time.monotonic()
    due_s = start_s + _SHOWN_AFTER_S

    def show(done: int, total: int, what: str, /) -> None:
        nonlocal due_s
        now_s = time.monotonic()
        if now_s >= due_s:
            due_s = now_s + _PLAIN_EVERY_S
            _write(file, f"{verb}: {done}/{total} {_in_one_line(what)} ({now_s - start_s:.0f} s)\n")

    return show


def _write(file: TextIO | None, text: str) -> None:
    """Write to stderr; a closed or full stderr is ignored."""
    if file is None:
        return
    try:
        file.write(text)
        file.flush()
    except OSError:
        abandon(file)


@contextmanager
def _results(*, needs_reader: bool = False) -> Iterator[TextIO]:
    """The stream for results. ValueError, in one sentence, if it is stdout and cannot be written."""
    file = sys.stderr if _STATE.stdout_is_data else sys.stdout
    if file is None and not _STATE.stdout_is_data:
        raise ValueError("stdout is closed; expected it open, or redirected to /dev/null")
    try:
        yield _STATE.kept or file or io.StringIO()  # the last is forgotten with what it holds
    except BrokenPipeError:
        if needs_reader:
            raise
        abandon(file)
        _STATE.reader_has_gone = not _STATE.stdout_is_data
    except OSError as error:
        abandon(file)
        if not _STATE.stdout_is_data:
            raise ValueError(f"stdout: cannot be written ({error.strerror})") from error


def abandon(file: TextIO) -> None:
    """Send a stream's buffered output to /dev/null; otherwise the interpreter fails to flush it at exit."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
