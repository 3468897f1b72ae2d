"""Layout of a table in lines of a given width: long text is wrapped, nothing is cut off."""

import textwrap
from collections.abc import Sequence, Set
from itertools import zip_longest

_INDENT = _GAP = "  "
_LEAST_TEXT = 16  # columns that text keeps, as long as a policy's name


def lay_out(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: Set[int], width: int
) -> list[list[str]]:
    """Lines of the header, then of each row.

    Text is flush left, numbers are flush right. If a line is too long, titles of number columns are wrapped, then
    text. Text that cannot be wrapped, such as a path, goes on a line of its own above the rest of its row; so does all
    text if the numbers leave too little room.
    """
    table = [list(header), *map(list, rows)]
    widths = _column_widths(table, text_columns, width - len(_INDENT))
    if widths is None:
        return _stacked(table, text_columns, width)
    head, *body = [_row_lines(row, widths, text_columns, width) for row in table]
    return [head, *body]


def wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Wrap a text into lines; a word longer than a line stays whole."""
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.rstrip() for line in lines] or [first.rstrip()]


def _column_widths(table: Sequence[Sequence[str]], text_columns: Set[int], room: int) -> list[int] | None:
    """Column widths that fit, or None."""
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room -= len(_GAP) * (len(columns) - 1)
    if sum(widths) <= room:
        return widths
    for index, (title, *cells) in enumerate(columns):
        if index not in text_columns:
            widths[index] = max(map(len, [*title.split(), *cells]), default=0)
    while sum(widths) > room:
        widest = max(text_columns, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= _LEAST_TEXT:
            return None
        widths[widest] -= 1
    return widths


def _row_lines(row: Sequence[str], widths: Sequence[int], text_columns: Set[int], width: int) -> list[str]:
    above: list[str] = []
    cells = []
    for index, (cell, columns) in enumerate(zip(row, widths, strict=True)):
        lines = wrapped(cell, max(1, columns)) if len(cell) > columns else [cell]
        if max(map(len, lines)) > columns:
            start = _INDENT + " " * sum(other + len(_GAP) for other in widths[:index])
            above += wrapped(cell, width, first=start, rest=start)
            lines = []
        cells.append(lines)
    beside = [
        _INDENT
        + _GAP.join(
            part.ljust(columns) if index in text_columns else part.rjust(columns)
            for index, (part, columns) in enumerate(zip(parts, widths, strict=True))
        )
        for parts in zip_longest(*cells, fillvalue="")
    ]
    return [*above, *(line.rstrip() for line in beside if line.strip() or not above)]


def _stacked(table: Sequence[Sequence[str]], text_columns: Set[int], width: int) -> list[list[str]]:
    """Lines of rows whose text stands above their numbers."""
    numbers = [[cell for index, cell in enumerate(row) if index not in text_columns] for row in table]
    columns = list(zip(*numbers, strict=True))
    widths = [max(map(len, [*title.split(), *cells]), default=0) for title, *cells in columns]
    stacked = []
    for row, figures in zip(table, numbers, strict=True):
        text = _GAP.join(row[index] for index in sorted(text_columns) if row[index])
        above = wrapped(text, width, first=_INDENT, rest=_INDENT * 2) if text else []
        below = _row_lines(figures, widths, frozenset(), width) if any(figures) else []
        stacked.append([*above, *(_INDENT + line for line in below)])
    return stacked
