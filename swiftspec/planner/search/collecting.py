"""Garbage collection while the planner simulates."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Context without garbage collection, which takes a quarter of a simulation's time and frees next to nothing.

    What a simulation leaves behind is collected after it, so it should be a short one.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
