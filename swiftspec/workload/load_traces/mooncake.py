"""Mooncake's traces (FAST'25): JSON lines, some of them stamped every three seconds only."""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby, pairwise
from operator import attrgetter
from pathlib import Path

from swiftspec.files.reading import parse_json, read_lines, shown
from swiftspec.workload.load_traces.rows import LoadTraceFormat, TraceRow, seconds, token_count, with_fields

__all__ = ["MOONCAKE", "read_mooncake"]

_TIME, _PROMPT, _OUTPUT = _FIELDS = ("timestamp", "input_length", "output_length")
_BLOCKS, _BLOCK_TOKENS = "hash_ids", 512
_STAMPED_EVERY_S = 3.0
_MOST_LINE_BYTES = 4 << 20  # hash_ids has a number for every 512 tokens


def read_mooncake(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace, with the blocks of 512 tokens that requests share (`hash_ids`).

    Requests with one stamp are spread evenly up to the next stamp, three seconds at most. Else every stamp would be a
    burst of a dozen requests that there never was.
    """
    return _spread(_rows(path))


def _rows(path: Path) -> Iterator[TraceRow]:
    for number, line in read_lines(path, most_bytes=_MOST_LINE_BYTES):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            content = parse_json(line)
        except ValueError as error:
            raise ValueError(f"{where}: {error}; expected an object with {', '.join(_FIELDS)}") from error
        fields = with_fields(content, _FIELDS, where)
        prompt_tokens = token_count(fields[_PROMPT], _PROMPT, where)
        yield TraceRow(
            where=where,
            time_s=seconds(fields[_TIME], _TIME, where, unit_s=1e-3),
            prompt_tokens=prompt_tokens,
            output_tokens=token_count(fields[_OUTPUT], _OUTPUT, where),
            blocks=_blocks(fields.get(_BLOCKS, []), where)[: -(-prompt_tokens // _BLOCK_TOKENS)],
        )


def _blocks(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        return tuple(value)
    raise ValueError(f"{where}: {_BLOCKS} is {shown(value)}; expected a list of whole numbers")


def _spread(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    interval_s = _STAMPED_EVERY_S
    groups = ([*same] for _, same in groupby(rows, key=attrgetter("time_s")))
    for group, following in pairwise(chain(groups, [None])):
        assert group is not None  # only the last is
        if following is not None:
            interval_s = min(max(0.0, following[0].time_s - group[0].time_s), _STAMPED_EVERY_S)
        for index, row in enumerate(group):
            yield row._replace(time_s=row.time_s + index / len(group) * interval_s)


MOONCAKE = LoadTraceFormat(
    read=read_mooncake,
    time_column=_TIME,
    block_tokens=_BLOCK_TOKENS,
    licence="Apache-2.0, github.com/kvcache-ai/Mooncake; cite Mooncake (FAST 2025)",
)
