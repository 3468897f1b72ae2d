"""Timelines as JSON, as a server tells them to a client."""

from collections.abc import Iterable

from pydantic import TypeAdapter

from swiftspec.files.document import Facts
from swiftspec.files.reading import shown
from swiftspec.timing.timeline import COMPUTING, Phase, Span, Timeline

__all__ = ["timelines_as_json", "timelines_from_json"]

_TIMELINES = TypeAdapter(list[Timeline])
_LATEST_S = 1e10  # 300 years after a machine's start
_MOST_SPANS = 500_000  # an empty list takes a hundred times the memory of its text


class _Timeline(Facts):  # Facts stop at the first wrong item of millions
    request: str
    start_s: float
    spans: tuple[Span, ...]


class _Timelines(Facts):
    timelines: tuple[_Timeline, ...]


def timelines_as_json(timelines: Iterable[Timeline]) -> bytes:
    """Timelines as JSON; `timelines_from_json` reads it."""
    return _TIMELINES.dump_json([*timelines])


def timelines_from_json(content: bytes) -> list[Timeline]:
    """Timelines that `timelines_as_json` wrote, of which none has impossible spans. ValueError for anything else."""
    if content.count(b"[") + content.count(b"{") > _MOST_SPANS:
        raise ValueError(f"timelines have more than {_MOST_SPANS:,} spans, the most that are read")
    found = _Timelines.model_validate_json(b'{"timelines":%b}' % content).timelines
    for timeline in found:
        if not all(_is_possible(span, timeline.start_s) for span in timeline.spans):
            raise ValueError(f"the timeline of {shown(timeline.request)} has impossible spans")
    return [Timeline(request=each.request, start_s=each.start_s, spans=each.spans) for each in found]


def _is_possible(span: Span, start_s: float) -> bool:
    if not (-_LATEST_S < span.start_s <= span.end_s < _LATEST_S and min(span.rows, span.tokens, span.group) >= 0):
        return False
    if span.phase is Phase.COMMIT:
        return span.end_s > start_s
    return span.phase not in COMPUTING or (span.rows > 0 and span.end_s > span.start_s)
