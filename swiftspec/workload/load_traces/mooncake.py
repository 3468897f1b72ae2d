"""Mooncake's traces (FAST'25), and others with its fields: JSON lines, some of them stamped every three seconds only.

Mooncake's stamps are milliseconds, and its blocks have 512 tokens; Qwen-Bailian's stamps are seconds, and its blocks
have 16 (github.com/alibaba-edu/qwen-bailian-usagetraces-anon).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from swiftspec.files.reading import parse_json, read_lines, shown
from swiftspec.workload.load_traces.rows import LoadTraceFormat, TraceRow, seconds, token_count, with_fields

__all__ = ["MOONCAKE", "read_mooncake"]

_TIME, _PROMPT, _OUTPUT = _FIELDS = ("timestamp", "input_length", "output_length")
_BLOCKS, _CHAT = "hash_ids", "chat_id"
_BLOCK_TOKENS: Final = (512, 16, 4096, 2048, 1024, 256, 128, 64, 32, 8, 4, 2, 1)  # the likeliest first
_UNITS: Final = {"s": 1.0, "ms": 1e-3}
_LEAST_GAP, _MOST_GAP = 5.0, 10.0  # between rows: more than 200 requests per second, and less than one in 10 s
_SEEN = 1000  # rows that tell what the file is
_MOST_FIT: Final = 0.9  # of them, for a size of blocks that is not Mooncake's
_STAMPED_EVERY_S = 3.0
_MOST_LINE_BYTES = 4 << 20  # hash_ids has a number for every few tokens


def read_mooncake(path: Path, time_unit: str | None = None) -> Iterator[TraceRow]:
    """Rows of a trace, with the blocks that requests share (`hash_ids`); stamps are in `time_unit`, s or ms.

    Without it the first rows tell: fractions of a stamp, and `chat_id`, are of traces in seconds. ValueError if neither
    unit gives a plausible load.

    Requests with one stamp are spread evenly up to the next stamp, three seconds at most. Else every stamp would be a
    burst of a dozen requests that there never was.
    """
    rows = _objects(path)
    first = [*islice(rows, _SEEN)]
    unit, block_tokens = time_unit or _unit([fields for _, fields in first], path), _block_tokens(first)
    yield from _spread(_row(*row, unit, block_tokens) for row in chain(first, rows))


def _objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in read_lines(path, most_bytes=_MOST_LINE_BYTES):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            content = parse_json(line)
        except ValueError as error:
            raise ValueError(f"{where}: {error}; expected an object with {', '.join(_FIELDS)}") from error
        if isinstance(content, dict) and _TIME not in content and "delay" in content:
            raise ValueError(
                f"{where}: {_TIME} is missing, and delay is {shown(content['delay'])}, of a turn that waits for an "
                f"answer; expected rows that all have a {_TIME}, since a replay knows no answers"
            )
        yield where, with_fields(content, _FIELDS, where)


def _row(where: str, fields: Mapping[str, Any], unit: str, block_tokens: int) -> TraceRow:
    prompt_tokens = token_count(fields[_PROMPT], _PROMPT, where)
    return TraceRow(
        where=where,
        time_s=seconds(fields[_TIME], _TIME, where, unit_s=_UNITS[unit]),
        prompt_tokens=prompt_tokens,
        output_tokens=token_count(fields[_OUTPUT], _OUTPUT, where),
        blocks=_blocks(fields.get(_BLOCKS, []), where)[: -(-prompt_tokens // block_tokens)],
        block_tokens=block_tokens,
    )


def _unit(rows: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Unit of the stamps, as the rows tell it."""
    stamps = [row[_TIME] for row in rows if type(row[_TIME]) in (int, float) and 0 <= row[_TIME] < math.inf]
    if any(_CHAT in row for row in rows):
        return "s"
    has_fractions = any(stamp % 1 for stamp in stamps)
    gap = (stamps[-1] - stamps[0]) / (len(stamps) - 1) if len(stamps) > 1 else 0.0
    if gap > 0 and (gap > _MOST_GAP if has_fractions else gap < _LEAST_GAP):
        raise ValueError(
            f"{path}: {_TIME} rises by {gap:.3g} a row, {1e3 / gap:.3g} requests/s if it is in ms and {1 / gap:.3g} if "
            "in s; expected the unit, time_unit=s or time_unit=ms"
        )
    return "s" if has_fractions else "ms"


def _block_tokens(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
    """Tokens of a block: those that give most prompts their number of blocks; Mooncake's if several do, or none."""
    sizes = [
        (token_count(fields[_PROMPT], _PROMPT, where), len(_blocks(fields[_BLOCKS], where)))
        for where, fields in rows
        if fields.get(_BLOCKS)
    ]
    fitting = {size: sum(-(-tokens // size) == blocks for tokens, blocks in sizes) for size in _BLOCK_TOKENS}
    best = max(fitting, key=fitting.__getitem__)
    return best if fitting[best] >= _MOST_FIT * len(sizes) else _BLOCK_TOKENS[0]


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
    read_in=read_mooncake,
    licence="Apache-2.0, github.com/kvcache-ai/Mooncake; cite Mooncake (FAST 2025)",
)
