"""Progress reports: functions that take seconds accept `Stages`; `silent` says nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

__all__ = ["Progress", "Stages", "silent"]


class Progress(Protocol):
    """Hears how much of one stage is done."""

    def __call__(self, done: int, total: int, what: str, /) -> None:
        """`done` of `total` parts, and which one comes next."""


class Stages(Protocol):
    """Opens a stage by its name, as `plan` or `validate`."""

    def __call__(self, stage: str, /) -> AbstractContextManager[Progress]:
        """The stage lasts as long as the context."""


@contextmanager
def silent(_: str, /) -> Iterator[Progress]:
    """Stages that nobody watches."""
    yield lambda *_: None
