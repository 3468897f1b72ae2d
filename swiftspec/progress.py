"""Progress reports: functions that take seconds accept `Stages`; `silent` ignores them. And the time that is enough."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

__all__ = ["MINUTES", "Progress", "Stages", "silent", "time_limit"]

MINUTES = 10.0  # that a stage takes at most, of slow models, if it is not told how much to do


def time_limit(minutes: float = MINUTES) -> Callable[[], bool]:
    """A function that says whether so much time has passed since now."""
    ends_s = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= ends_s


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
