"""AdaServe's request lists (`emission_rps*.json`): arrivals, lengths, and a latency limit for every request."""

from collections.abc import Iterator
from pathlib import Path

from swiftspec.artifacts.workload import RequestClass
from swiftspec.files.reading import read_json, shown
from swiftspec.workload.load_traces.rows import LoadTraceFormat, TraceRow, seconds, token_count, with_fields

__all__ = ["ADASERVE", "read_adaserve"]

_TIME, _PROMPT, _OUTPUT, _LIMIT = _FIELDS = ("emission_time_ms", "input_length", "output_length", "slo_ratio")
_LEAST_LIMIT, _MOST_LIMIT = 1e-3, 1e5


def read_adaserve(path: Path) -> Iterator[TraceRow]:
    """Requests of a list, with a class for every `slo_ratio`; the prompts' text is not kept."""
    content = read_json(path)
    if not isinstance(content, list):
        found = type(content).__name__
        raise ValueError(f"{path}: a JSON {found}; expected a list of objects with {', '.join(_FIELDS)}")
    for number, item in enumerate(content, start=1):
        where = f"{path}, request {number}"
        fields = with_fields(item, _FIELDS, where)
        yield TraceRow(
            where=where,
            time_s=seconds(fields[_TIME], _TIME, where, unit_s=1e-3),
            prompt_tokens=token_count(fields[_PROMPT], _PROMPT, where),
            output_tokens=token_count(fields[_OUTPUT], _OUTPUT, where),
            request_class=_request_class(fields[_LIMIT], where),
        )


def _request_class(limit: object, where: str) -> RequestClass:
    """The class of a `slo_ratio`.

    A negative one is a limit on TPOT in milliseconds. A positive one is a multiple of the target's own latency, which
    depends on the hardware: such a class has no limit until it is given one.
    """
    if not isinstance(limit, int | float) or not _LEAST_LIMIT <= abs(limit) <= _MOST_LIMIT or isinstance(limit, bool):
        raise ValueError(f"{where}: {_LIMIT} is {shown(limit)}; expected a ratio, or a negative limit in ms")
    if limit < 0:
        return RequestClass(name=f"slo-{-limit:g}ms", tpot_s=-limit / 1e3)
    return RequestClass(name=f"slo-{limit:g}x")


ADASERVE = LoadTraceFormat(
    read=read_adaserve,
    time_column=_TIME,
    licence="Apache-2.0, github.com/zikun-li/AdaServe-Artifact-Evaluation; cite AdaServe (EuroSys 2026)",
)
