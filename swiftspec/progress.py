"""Progress reports: functions that take seconds accept `Stages`; `silent` ignores them. And the time that is enough."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# Receives how many parts of a stage are done, how many there are, and what the next one is.
Progress = Callable[[int, int, str], None]
# Opens a stage by its name, such as `plan` or `validate`; it lasts as long as the context.
Stages = Callable[[str], AbstractContextManager[Progress]]
MINUTES = 10.0  # that a stage takes at most, of slow models, if it is not told how much to do


def time_limit(minutes: float = MINUTES) -> Callable[[], bool]:
    """A function that says whether so much time has passed since now."""
    ends_s = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= ends_s


@contextmanager
def silent(_: str, /) -> Iterator[Progress]:
    """Stages without progress reports."""
    yield lambda *_: None
