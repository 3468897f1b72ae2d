"""Loaders of load traces, which others recorded at their servers. No trace comes with the package.

A format is a reader of rows and an entry of `FORMATS`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from swiftspec.artifacts.distributions import MOST_TOKENS
from swiftspec.artifacts.workload import MOST_ID_CHARACTERS, RequestClass
from swiftspec.files.csv_rows import read_cells
from swiftspec.files.reading import parse_json, read_json, read_lines, shown

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
    """

    read: Callable[[Path], Iterator[TraceRow]]
    time_column: str
    licence: str


def _row(where: str, cells: Mapping[str, Any], columns: Sequence[str], *, time_s: float) -> TraceRow:
    """A row whose numbers of tokens are in the second and the third of its columns."""
    prompt, output = (_token_count(cells[name], name, where) for name in columns[1:3])
    return TraceRow(where, time_s, prompt, output)


def _token_count(value: object, name: str, where: str) -> int:
    """A number of tokens, which may be 0. ValueError naming place, column and value for anything else."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) <= MOST_TOKENS:
        return int(text)
    raise ValueError(f"{where}: {name} is {shown(value)}; expected a whole number from 0 to {MOST_TOKENS}")


def _seconds(value: object, name: str, where: str, *, unit_s: float = 1.0) -> float:
    """A time of 0 or more, in seconds. ValueError naming place, column and value for anything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{where}: {name} is {shown(value)}; expected a number of 0 or more")
    return number * unit_s


def _with_fields(value: object, names: Sequence[str], where: str) -> Mapping[str, Any]:
    """A JSON object that has these fields. ValueError naming place and field for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: a JSON {type(value).__name__}; expected an object with {', '.join(names)}")
    for name in names:
        if name not in value:
            raise ValueError(f"{where}: {name} is missing; expected {', '.join(names)}")
    return value


# Azure's LLM inference traces of 2023 and 2024: CSV files with a date for every request.
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _read_azure(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace, as `2023-11-16 18:17:03.9799600,4808,10`; dates of 2024 end in a time zone."""
    first = None
    for where, cells in read_cells(path, _AZURE):
        moment = _moment(cells[_AZURE[0]], where)
        first = first or moment
        yield _row(where, cells, _AZURE, time_s=(moment - first).total_seconds())


def _moment(text: str, where: str) -> datetime:
    """A date in UTC, to the microsecond."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where}: {_AZURE[0]} is {shown(text)}; expected a date and time") from error


# BurstGPT: CSV files of requests to ChatGPT and GPT-4, with failures.
_BURSTGPT: Final = ("Timestamp", "Request tokens", "Response tokens")
_CONVERSATION: Final = "Session ID"  # since release 2, and of conversations only


def _read_burstgpt(path: Path) -> Iterator[TraceRow]:
    """Rows of a trace. Failed requests have 0 response tokens; timestamps are seconds since the first day."""
    for where, cells in read_cells(path, _BURSTGPT, optional=(_CONVERSATION,)):
        conversation = cells[_CONVERSATION]
        if len(conversation) > MOST_ID_CHARACTERS:
            raise ValueError(
                f"{where}: {_CONVERSATION} is {shown(conversation)}; expected at most {MOST_ID_CHARACTERS} characters"
            )
        time_s = _seconds(cells[_BURSTGPT[0]], _BURSTGPT[0], where)
        yield _row(where, cells, _BURSTGPT, time_s=time_s)._replace(conversation=conversation or None)


# AdaServe's request lists (`emission_rps*.json`): arrivals, lengths, and a latency limit for every request.
_ADASERVE: Final = ("emission_time_ms", "input_length", "output_length", "slo_ratio")
_LEAST_LIMIT, _MOST_LIMIT = 1e-3, 1e5


def _read_adaserve(path: Path) -> Iterator[TraceRow]:
    """Requests of a list, with a class for every `slo_ratio`; the prompts' text is not kept."""
    content = read_json(path)
    if not isinstance(content, list):
        found = type(content).__name__
        raise ValueError(f"{path}: a JSON {found}; expected a list of objects with {', '.join(_ADASERVE)}")
    for number, item in enumerate(content, start=1):
        where = f"{path}, request {number}"
        fields = _with_fields(item, _ADASERVE, where)
        time_s = _seconds(fields[_ADASERVE[0]], _ADASERVE[0], where, unit_s=1e-3)
        row = _row(where, fields, _ADASERVE, time_s=time_s)
        yield row._replace(request_class=_request_class(fields[_ADASERVE[3]], where))


def _request_class(limit: object, where: str) -> RequestClass:
    """The class of a `slo_ratio`.

    A negative one is a limit on TPOT in milliseconds. A positive one is a multiple of the target's own latency, which
    depends on the hardware: such a class has no limit until it is given one.
    """
    if not isinstance(limit, int | float) or not _LEAST_LIMIT <= abs(limit) <= _MOST_LIMIT or isinstance(limit, bool):
        raise ValueError(f"{where}: {_ADASERVE[3]} is {shown(limit)}; expected a ratio, or a negative limit in ms")
    if limit < 0:
        return RequestClass(name=f"slo-{-limit:g}ms", tpot_s=-limit / 1e3)
    return RequestClass(name=f"slo-{limit:g}x")


# Mooncake's traces (FAST'25), and others with its fields: JSON lines, some of them stamped every three seconds only.
# Mooncake's stamps are milliseconds, and its blocks have 512 tokens; Qwen-Bailian's stamps are seconds, and its blocks
# have 16 (github.com/alibaba-edu/qwen-bailian-usagetraces-anon).
_TIME, _PROMPT, _ = _MOONCAKE = ("timestamp", "input_length", "output_length")
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
    yield from _spread(_mooncake_row(*row, unit, block_tokens) for row in chain(first, rows))


def _objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in read_lines(path, most_bytes=_MOST_LINE_BYTES):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            content = parse_json(line)
        except ValueError as error:
            raise ValueError(f"{where}: {error}; expected an object with {', '.join(_MOONCAKE)}") from error
        if isinstance(content, dict) and _TIME not in content and "delay" in content:
            raise ValueError(
                f"{where}: {_TIME} is missing, and delay is {shown(content['delay'])}, of a turn that waits for an "
                f"answer; expected rows that all have a {_TIME}, since a replay knows no answers"
            )
        yield where, _with_fields(content, _MOONCAKE, where)


def _mooncake_row(where: str, fields: Mapping[str, Any], unit: str, block_tokens: int) -> TraceRow:
    row = _row(where, fields, _MOONCAKE, time_s=_seconds(fields[_TIME], _TIME, where, unit_s=_UNITS[unit]))
    blocks = _blocks(fields.get(_BLOCKS, []), where)[: -(-row.prompt_tokens // block_tokens)]
    return row._replace(blocks=blocks, block_tokens=block_tokens)


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
        (_token_count(fields[_PROMPT], _PROMPT, where), len(_blocks(fields[_BLOCKS], where)))
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


FORMATS: Final[Mapping[str, LoadTraceFormat]] = {
    "azure": LoadTraceFormat(
        read=_read_azure,
        time_column=_AZURE[0],
        licence="CC-BY 4.0, github.com/Azure/AzurePublicDataset; cite Splitwise (ISCA 2024) or DynamoLLM (HPCA 2025)",
    ),
    "burstgpt": LoadTraceFormat(
        read=_read_burstgpt,
        time_column=_BURSTGPT[0],
        licence="CC-BY 4.0, github.com/HPMLL/BurstGPT; cite BurstGPT (arXiv 2401.17644)",
    ),
    "mooncake": LoadTraceFormat(
        read=read_mooncake,
        time_column=_TIME,
        licence="Apache-2.0, github.com/kvcache-ai/Mooncake; cite Mooncake (FAST 2025)",
    ),
    "adaserve": LoadTraceFormat(
        read=_read_adaserve,
        time_column=_ADASERVE[0],
        licence="Apache-2.0, github.com/zikun-li/AdaServe-Artifact-Evaluation; cite AdaServe (EuroSys 2026)",
    ),
}
