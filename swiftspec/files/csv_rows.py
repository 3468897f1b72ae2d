"""Rows of CSV files that users name: one at a time, by column name, with the place of each for errors."""

import csv
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path

from swiftspec.files.reading import read_lines

__all__ = ["read_cells", "read_table"]

_MOST_LINE_BYTES = 1 << 20


def read_cells(
    path: Path, columns: Sequence[str], *, optional: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Place (`FILE, line N`) and cells of every row that is not blank.

    columns: columns to read; others are ignored. optional: columns that the file may lack; their cells are then empty.

    ValueError: one sentence naming file, line and column.
    """
    try:
        lines = (_text(number, line) for number, line in read_lines(path, most_bytes=_MOST_LINE_BYTES))
        reader = csv.reader(lines)
        header = next(reader, [])
        places = {name: _place(header, name, path, columns) for name in columns}
        places |= {name: header.index(name) for name in optional if name in header}
        blank = dict.fromkeys(optional, "")
        for cells in reader:
            if cells:
                where = f"{path}, line {reader.line_num}"
                yield where, blank | _row(cells, places, where)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file ({error})") from error


def _text(number: int, line: bytes) -> str:
    return (line.removeprefix(BOM_UTF8) if number == 1 else line).decode()


def _place(header: Sequence[str], name: str, path: Path, columns: Sequence[str]) -> int:
    if name not in header:
        raise ValueError(f"{path}, line 1: column {name} is missing; expected {', '.join(columns)}")
    return header.index(name)


def _row(cells: Sequence[str], places: dict[str, int], where: str) -> dict[str, str]:
    row = {}
    for name, place in places.items():
        if place >= len(cells):
            raise ValueError(f"{where}: {len(cells)} columns; {name} is missing")
        row[name] = cells[place]
    return row


def read_table(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Place and all cells of every row that is not blank, by the names in the first line; missing cells are empty."""
    try:
        lines = (_text(number, line) for number, line in read_lines(path, most_bytes=_MOST_LINE_BYTES))
        reader = csv.reader(lines)
        header = next(reader, [])
        if twice := next((name for name in header if header.count(name) > 1), None):
            raise ValueError(f"{path}, line 1: column {twice} is there twice; expected different ones")
        for cells in reader:
            if cells:
                if len(cells) > len(header):
                    raise ValueError(f"{path}, line {reader.line_num}: {len(cells)} cells; expected {len(header)}")
                yield (
                    f"{path}, line {reader.line_num}",
                    dict.fromkeys(header, "") | dict(zip(header, cells, strict=False)),
                )
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file ({error})") from error
