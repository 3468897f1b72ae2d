"""Timelines as JSON, as a server tells them to a client."""

from collections.abc import Iterable

from pydantic import TypeAdapter

from swiftspec.artifacts.timeline import Timeline

__all__ = ["timelines_as_json", "timelines_from_json"]

_TIMELINES = TypeAdapter(list[Timeline])


def timelines_as_json(timelines: Iterable[Timeline]) -> bytes:
    """Timelines as JSON; `timelines_from_json` reads it."""
    return _TIMELINES.dump_json([*timelines])


def timelines_from_json(content: bytes) -> list[Timeline]:
    """Timelines that `timelines_as_json` wrote. ValueError for anything else."""
    return _TIMELINES.validate_json(content)
