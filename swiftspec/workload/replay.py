"""Replays: workloads with the arrivals and lengths of a load trace."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.workload import MOST_REQUESTS, MOST_SHARED, LoadTrace, RequestClass, SharedText, Workload
from swiftspec.errors import FieldError
from swiftspec.files.document import Origin, file_sha256
from swiftspec.files.reading import shown
from swiftspec.workload.generate import DEFAULT_CLASSES, assign_classes, check_classes, random_streams
from swiftspec.workload.load_traces import FORMATS, TraceRow, read_mooncake


def replay(
    format_name: str,
    path: Path | str,
    *,
    start_s: float = 0.0,
    duration_s: float | None = None,
    num_requests: int | None = None,
    rate: float | None = None,
    time_unit: str | None = None,
    classes: Sequence[RequestClass] = (),
    seed: int = 0,
) -> Workload:
    """Workload with the arrivals and lengths of a load trace, or of a part of it.

    format_name: one of `FORMATS`.
    start_s, duration_s: the part to take, in seconds since the trace's first row; arrivals are counted from `start_s`.
    num_requests: requests to take, at most: the first ones.
    rate: mean requests per second that the time axis is stretched to.
    time_unit: of Mooncake's stamps, `s` or `ms`, where the file does not tell.
    classes: for a trace with classes of its own, limits of these, by name; for any other, as for `make_workload`.
    seed: for the classes of requests of a trace without its own.

    ValueError: naming the argument, or file, line and column, and the value.
    """
    path = Path(path)
    if format_name not in FORMATS:
        raise FieldError("format_name", shown(format_name), f"expected one of {', '.join(FORMATS)}")
    load_format = FORMATS[format_name]
    _check_part(start_s, duration_s, num_requests)
    if time_unit is not None and (format_name != "mooncake" or time_unit not in ("s", "ms")):
        raise FieldError("time_unit", shown(time_unit), "expected s or ms, of stamps in the format mooncake")
    rows = load_format.read(path) if time_unit is None else read_mooncake(path, time_unit)
    taken, left_out = _take(rows, start_s, duration_s, num_requests, time_column=load_format.time_column)
    if not taken:
        part = f"from {start_s:g} s on" + ("" if duration_s is None else f", for {duration_s:g} s")
        raise ValueError(f"{path}: no request arrives {part}; expected at least one")
    known, names = _classes(taken, classes, seed, path)
    values = {
        "origin": Origin.here(),
        "arrivals": Arrivals(process=Process.REPLAY),
        "prompt_tokens": Lengths(distribution=Distribution.REPLAY),
        "output_tokens": Lengths(distribution=Distribution.REPLAY),
        "seed": seed,
        "classes": known,
        "requests": [
            {
                "arrival_s": row.time_s,
                "prompt_tokens": row.prompt_tokens,
                "output_tokens": row.output_tokens,
                "class_name": class_name,
                "conversation": row.conversation,
                "shared": shared,
            }
            for row, class_name, shared in zip(taken, names, shared_stretches(taken), strict=True)
        ],
        "trace": LoadTrace(
            format=format_name,
            file=path.name,
            sha256=file_sha256(path),
            licence=load_format.licence,
            start_s=start_s,
            duration_s=duration_s,
            left_out=dict(left_out),
        ),
    }
    made = Workload.checked(values, source=str(path))
    return made if rate is None else made.scaled(rate=rate)


def _check_part(start_s: float, duration_s: float | None, num_requests: int | None) -> None:
    if not 0 <= start_s < float("inf"):
        raise FieldError("start_s", f"{start_s:g}", "expected 0 or more")
    if duration_s is not None and not 0 < duration_s < float("inf"):
        raise FieldError("duration_s", f"{duration_s:g}", "expected more than 0")
    if num_requests is not None and not 1 <= num_requests <= MOST_REQUESTS:
        raise FieldError("num_requests", num_requests, f"expected 1 to {MOST_REQUESTS}")


def _take(
    rows: Iterable[TraceRow], start_s: float, duration_s: float | None, num_requests: int | None, *, time_column: str
) -> tuple[list[TraceRow], Mapping[str, int]]:
    """Requests of a part, their times counted from its start, and numbers of other rows, by reason.

    Rows are read up to the end of the part only: some traces have millions.
    """
    taken: list[TraceRow] = []
    left_out: Counter[str] = Counter()
    first_s = last_s = None
    for row in rows:
        if first_s is None or last_s is None:
            first_s = last_s = row.time_s
        if row.time_s < last_s:
            raise ValueError(
                f"{row.where}: {time_column} is {last_s - row.time_s:g} s before that of the row above; "
                "expected rows in order of time"
            )
        last_s = row.time_s
        time_s = row.time_s - first_s - start_s
        if duration_s is not None and time_s >= duration_s:
            break
        if time_s >= 0 and row.fault:
            left_out[row.fault] += 1
        elif time_s >= 0:
            if len(taken) == MOST_REQUESTS:
                raise ValueError(
                    f"{row.where}: more than {MOST_REQUESTS} requests; take the first ones, or a part of the time"
                )
            taken.append(row._replace(time_s=time_s))
            if len(taken) == num_requests:
                break
    return taken, left_out


def _classes(
    rows: Sequence[TraceRow], classes: Sequence[RequestClass], seed: int, path: Path
) -> tuple[tuple[RequestClass, ...], list[str]]:
    """Classes of the workload, and the name of every request's."""
    streams = random_streams(seed)
    own = {row.request_class.name: row.request_class for row in rows if row.request_class is not None}
    if not own:
        known = tuple(classes) or DEFAULT_CLASSES
        return known, assign_classes(known, len(rows), streams.classes)
    if classes:
        check_classes(classes)
    for each in classes:
        if each.name not in own:
            raise ValueError(f"class {shown(each.name)} is not in {path}; expected {', '.join(sorted(own))}")
        if each.share is not None:
            raise ValueError(
                f"share of class {each.name} is {each.share:g}, but {path} says of which class each request is"
            )
        own[each.name] = each
    known = tuple(own[name] for name in sorted(own))
    return known, [row.request_class.name for row in rows if row.request_class is not None]


def shared_stretches(rows: Sequence[TraceRow]) -> Iterator[list[SharedText]]:
    """What each row's prompt shares with others: its blocks up to the first that nobody else has.

    Blocks that as many rows have belong together, since a block's name stands for all the text up to its end.
    """
    users = Counter(block for row in rows for block in set(row.blocks))
    for row in rows:
        found: list[SharedText] = []
        left = row.prompt_tokens
        for number, group in groupby(row.blocks, key=lambda block: users[block]):
            if number == 1 or len(found) == MOST_SHARED:
                break
            blocks = list(group)
            tokens = min(left, row.block_tokens * len(blocks))
            found.append((f"block-{blocks[0]}", tokens))
            left -= tokens
        yield found
