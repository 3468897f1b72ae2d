"""Pace of cores: the same work, timed again and again beside what is measured on them.

A core that other machines share may be half as fast for some seconds, and all that runs on it is, by much the same
factor. So times that were measured a minute apart can be compared once each is divided by what this work took then. It
reads more than the second-level cache holds, as decoding does: work that just fits is faster or slower by a third from
one process to the next, with the pages that it was given. docs/log/2026-11-27-vllm-on-cpus.md has how well steps of a
server follow it.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

import numpy as np

_EVERY_S: Final = 0.1  # the work takes 1 % of a core
_AROUND_S: Final = 0.3  # so that some samples lie in the shortest window
_MOST_CORES: Final = 8
_STREAMED: Final = 1_000_000


@contextmanager
def watched(cores: Set[int]) -> Iterator[Callable[[float, float], float]]:
    """Cores that are watched within the context; none where threads cannot be bound to cores.

    Yields seconds of the work, the mean over cores, between two times of `time.perf_counter`; 1 if none is watched.
    """
    chosen = sorted(cores)[:: -(-len(cores) // _MOST_CORES) or 1] if sys.platform == "linux" else []
    watchers = [_Watcher(core) for core in chosen]
    for each in watchers:
        each.start()
    try:
        for each in watchers:
            each.has_sample.wait()
        yield lambda began_s, ended_s: _mean_s(watchers, began_s - _AROUND_S, ended_s + _AROUND_S)
    finally:
        for each in watchers:
            each.ends.set()
        for each in watchers:
            each.join()


class _Watcher(Thread):
    """A thread on one core. Its work is timed by the processor time that it got, whoever else waited."""

    def __init__(self, core: int) -> None:
        super().__init__(name=f"pace of core {core}", daemon=True)
        self.has_sample, self.ends = Event(), Event()
        self._core = core
        self._samples: list[tuple[float, float]] = []  # when, and the work's seconds

    def run(self) -> None:
        if sys.platform == "linux":
            os.sched_setaffinity(0, {self._core})  # of this thread alone
        streamed = np.ones(_STREAMED, np.float32)
        while True:
            self._samples.append((time.perf_counter(), _seconds(streamed.sum)))
            self.has_sample.set()
            if self.ends.wait(_EVERY_S):
                break

    def mean(self, began_s: float, ended_s: float) -> float:
        """Seconds in that time, or of the sample that is nearest."""
        when_s, seconds = np.array(self._samples).T
        within = seconds[(began_s <= when_s) & (when_s <= ended_s)]
        return float(within.mean() if within.size else seconds[np.argmin(abs(when_s - began_s))])


def _mean_s(watchers: Sequence[_Watcher], began_s: float, ended_s: float) -> float:
    means = [each.mean(began_s, ended_s) for each in watchers]
    return float(np.mean(means)) if means else 1.0


def _seconds(work: Callable[[], object]) -> float:
    """Of the second of two runs: the first finds the caches as others left them."""
    work()
    began_s = time.thread_time()
    work()
    return max(1e-9, time.thread_time() - began_s)
