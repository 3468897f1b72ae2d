"""Prometheus' text format, in which servers tell their metrics."""

import re
from collections.abc import Iterator
from io import StringIO

from swiftspec.files.reading import shown

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>.*)\})?\s+(?P<value>\S+)(\s+\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text: str, source: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every sample. ValueError naming source and line."""
    for number, line in enumerate(StringIO(text), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line.strip())
        try:
            value = float(match["value"]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise ValueError(f"{source}, line {number}: {shown(line.strip())} is no sample of Prometheus' text format")
        yield match["name"], dict(_LABEL.findall(match["labels"] or "")), value
