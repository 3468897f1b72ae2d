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
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Final

import numpy as np

_EVERY_S: Final = 0.1  # the work takes 1 % of a core
_AROUND_S: Final = 0.3  # so that some samples lie in the shortest window
_MOST_CORES: Final = 8
_STREAMED: Final = 1_000_000
_Samples = list[tuple[float, float]]  # when, and the work's seconds


@contextmanager
def watched(cores: Set[int]) -> Iterator[Callable[[float, float], float]]:
    """Cores that are watched within the context; none where threads cannot be bound to cores.

    Yields seconds of the work, the mean over cores, between two times of `time.perf_counter`; 1 if none is watched.
    """
    chosen = sorted(cores)[:: -(-len(cores) // _MOST_CORES) or 1] if sys.platform == "linux" else []
    samples: list[_Samples] = [[] for _ in chosen]
    ends = Event()

    def pace_s(began_s: float, ended_s: float) -> float:
        means = [_mean_s(own, began_s - _AROUND_S, ended_s + _AROUND_S) for own in samples]
        return float(np.mean(means)) if means else 1.0

    with ThreadPoolExecutor(_MOST_CORES) as threads:
        try:
            for core, own in zip(chosen, samples, strict=True):
                threads.submit(_watch, core, own, ends)
            while not all(samples):
                time.sleep(_EVERY_S)
            yield pace_s
        finally:
            ends.set()


def _watch(core: int, samples: _Samples, ends: Event) -> None:
    """Sample the work on a core, by the processor time that it got, whoever else waited."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {core})  # of this thread alone
    streamed = np.ones(_STREAMED, np.float32)
    while not ends.is_set():
        streamed.sum()  # the first of two runs finds the caches as others left them
        at_s, began_s = time.perf_counter(), time.thread_time()
        streamed.sum()
        samples.append((at_s, max(1e-9, time.thread_time() - began_s)))
        ends.wait(_EVERY_S)


def _mean_s(samples: _Samples, began_s: float, ended_s: float) -> float:
    """Mean in that time, or the sample that is nearest."""
    when_s, seconds = np.array(samples).T
    within = seconds[(began_s <= when_s) & (when_s <= ended_s)]
    return float(within.mean() if within.size else seconds[np.argmin(abs(when_s - began_s))])
