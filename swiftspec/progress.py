"""Progress reports: functions that take seconds accept `Stages`; `silent` ignores them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

__all__ = ["Progress", "Stages", "silent"]


class Progress(Protocol):
    """Receives the progress of one stage."""

    def __call__(self, done: int, total: int, what: str, /) -> None:
        """Report that `done` of `total` parts are done, and name the next one."""


class Stages(Protocol):
    """Opens a stage by its name, such as `plan` or `validate`."""

    def __call__(self, stage: str, /) -> AbstractContextManager[Progress]:
        """The stage lasts as long as the context."""


@contextmanager
def silent(_: str, /) -> Iterator[Progress]:
    """Stages without progress reports."""
    yield lambda *_: None
