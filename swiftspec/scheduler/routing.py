"""Routing of requests to replicas: which of several equal engines serves the next one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

__all__ = ["ROUTERS", "LeastLoaded", "RoundRobin", "Router"]


class Router(Protocol):
    """A rule that sees how many requests each replica has."""

    def choose(self, num_requests: Sequence[int]) -> int:
        """Index of the replica that serves the next request.

        num_requests: of each replica, those that run and those that wait.
        """


class RoundRobin:
    """One replica after another, whatever they have to do.

    Examples
    --------
    >>> router = RoundRobin()
    >>> [router.choose([9, 0]) for _ in range(3)]
    [0, 1, 0]
    """

    def __init__(self) -> None:
        self._num_chosen = 0

    def choose(self, num_requests: Sequence[int]) -> int:
        """The one after the last."""
        chosen = self._num_chosen % len(num_requests)
        self._num_chosen += 1
        return chosen


class LeastLoaded:
    """The replica with the fewest requests; of equals the one after the last choice.

    Examples
    --------
    >>> router = LeastLoaded()
    >>> [router.choose([1, 0, 0]) for _ in range(3)]
    [1, 2, 1]
    """

    def __init__(self) -> None:
        self._last = -1

    def choose(self, num_requests: Sequence[int]) -> int:
        """The index of the least number."""
        count = len(num_requests)
        self._last = min(range(count), key=lambda index: (num_requests[index], (index - self._last - 1) % count))
        return self._last


ROUTERS: Mapping[str, Callable[[], Router]] = {"round-robin": RoundRobin, "least-loaded": LeastLoaded}
