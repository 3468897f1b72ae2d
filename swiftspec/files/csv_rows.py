"""Rows of CSV files that users name: one at a time, by column name, with the place of each for errors."""

import csv
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path

from swiftspec.files.reading import read_lines

_MOST_LINE_BYTES = 1 << 20


def read_cells(
    path: Path, columns: Sequence[str], *, optional: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Place (`FILE, line N`) and cells of every row that is not blank.

    columns: columns to read; others are ignored. optional: columns that the file may lack; their cells are then empty.

    ValueError: one sentence naming file, line and column.
    """
    lines = _lines(path)
    first, header = next(lines)
    if missing := next((name for name in columns if name not in header), None):
        raise ValueError(f"{first}: column {missing} is missing; expected {', '.join(columns)}")
    places = {name: header.index(name) for name in (*columns, *optional) if name in header}
    for where, cells in lines:
        if absent := next((name for name, place in places.items() if place >= len(cells)), None):
            raise ValueError(f"{where}: {len(cells)} columns; {absent} is missing")
        yield where, dict.fromkeys(optional, "") | {name: cells[place] for name, place in places.items()}


def read_table(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Place and all cells of every row that is not blank, by the names in the first line; missing cells are empty."""
    lines = _lines(path)
    first, header = next(lines)
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise ValueError(f"{first}: column {twice} is there twice; expected different ones")
    for where, cells in lines:
        if len(cells) > len(header):
            raise ValueError(f"{where}: {len(cells)} cells; expected {len(header)}")
        yield where, dict.fromkeys(header, "") | dict(zip(header, cells, strict=False))


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Place and cells of the first line, then of every one that is not blank."""
    lines = read_lines(path, most_bytes=_MOST_LINE_BYTES)
    try:
        reader = csv.reader((line.removeprefix(BOM_UTF8) if n == 1 else line).decode() for n, line in lines)
        yield f"{path}, line 1", next(reader, [])
        for cells in reader:
            if cells:
                yield f"{path}, line {reader.line_num}", cells
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file ({error})") from error
