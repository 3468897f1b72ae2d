"""Timer of calls whose arguments come from memory, as weights do, not from a cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swiftspec.engine.model.cuda_graph import GraphPool, Replay

__all__ = ["OpTimer", "Timing", "cache_bytes", "num_copies"]

Arguments = Sequence[tuple[Any, ...]]

_LOW, _HIGH = 0.2, 0.8
_LEAST_SAMPLES = 5
# A graph holds a call per copy: what is so small that these do not exceed the cache costs a launch, not its bytes.
_MOST_COPIES = 128
_CACHES = 4  # a cache may keep a part of what is read in turn: of what is so many times as large, a quarter at most
_WAKING_S = 0.5  # a GPU that was idle raises its clocks
_CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_CPU_CACHE_BYTES = 32 << 20  # where the system does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call: the median, and what 20 % and 80 % of the samples stay below."""

    median_s: float
    low_s: float
    high_s: float
    num_samples: int

    @classmethod
    def of(cls, samples_s: Iterable[float]) -> Timing:
        """ValueError without samples."""
        samples = np.fromiter(samples_s, float)
        if not samples.size:
            raise ValueError("timing of no samples; expected at least one")
        low_s, median_s, high_s = np.quantile(samples, [_LOW, 0.5, _HIGH]).tolist()
        return cls(median_s=median_s, low_s=low_s, high_s=high_s, num_samples=samples.size)

    @property
    def spread(self) -> float:
        """Distance between both, as a share of the median."""
        return (self.high_s - self.low_s) / self.median_s


def num_copies(num_bytes: int, cached_bytes: int) -> int:
    """Copies of so many bytes that are more than four times what a cache holds; at most 128.

    One of what has no bytes to speak of: what the kernel before has just written is in the cache in a forward, too.
    """
    return min(_MOST_COPIES, _CACHES * cached_bytes // num_bytes + 1) if num_bytes > 0 else 1


def cache_bytes(device: torch.device) -> int:
    """Of a device's last cache, shared by all that computes there."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    try:
        size = _CPU_CACHE.read_text().strip()
        return int(size.removesuffix("K")) << 10
    except (OSError, ValueError):
        return _CPU_CACHE_BYTES


class OpTimer:
    """Times calls on one device: by its events on a GPU, by the host's clock on a CPU.

    Parameters
    ----------
    device : torch.device or str
    repeats : int
        Samples of a timing; fewer where they take longer than `budget_s`, but never below 5.
    warm_up_s : float
        How long a call is repeated before the first sample; its first time on a GPU, for half a second at least.
    budget_s : float
        Seconds after which a timing ends.
    in_a_row : int
        Calls of a graph, at least.
    cached_bytes : int, optional
        What arguments have to exceed not to be cached; the device's own if not given.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        repeats: int = 40,
        warm_up_s: float = 0.03,
        budget_s: float = 0.2,
        in_a_row: int = 20,
        cached_bytes: int | None = None,
    ) -> None:
        self.device = device = torch.device(device)
        self._repeats = repeats
        self._warm_up_s = warm_up_s
        self._budget_s = budget_s
        self._in_a_row = in_a_row
        self.cached_bytes = cache_bytes(device) if cached_bytes is None else cached_bytes
        self._asleep = device.type == "cuda"

    def copies(self, num_bytes: int) -> int:
        """How many arguments of so many bytes to take turns with."""
        return num_copies(num_bytes, self.cached_bytes)

    def eager(self, call: Callable[..., object], arguments: Arguments = ((),)) -> Timing:
        """Seconds of one call, launched on its own: on a GPU whatever the host takes longer than the kernel counts."""
        turn = 0

        def once() -> None:
            nonlocal turn
            call(*arguments[turn % len(arguments)])
            turn += 1

        return self._measure(once, calls=1)

    def graphed(
        self, call: Callable[..., object], arguments: Arguments = ((),), *, in_a_row: int | None = None
    ) -> Timing:
        """Seconds of one call among many that follow each other, on a GPU in one CUDA graph: as in a forward.

        Every argument has its turn equally often, and there are `in_a_row` calls at least. A sample is the mean of one
        replay, which is launched while another one runs: what the host takes for that is not in it.
        """
        calls = -(-(in_a_row or self._in_a_row) // len(arguments)) * len(arguments)

        def all_of_them() -> None:
            for turn in range(calls):
                call(*arguments[turn % len(arguments)])

        replay = Replay(all_of_them, GraphPool(self.device))
        return self._measure(replay, calls=calls, before=replay if self.device.type == "cuda" else None)

    def once(self, function: Callable[[], object], *, before: Callable[[], object] | None = None) -> float:
        """Seconds of one call, now and cold: no warm-up. before: what keeps a GPU busy until the call is launched."""
        if self.device.type != "cuda":
            start_s = time.perf_counter()
            function()
            return time.perf_counter() - start_s
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(self.device):
            if before is not None:
                before()
            start.record()
            function()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _measure(
        self, function: Callable[[], object], *, calls: int, before: Callable[[], object] | None = None
    ) -> Timing:
        self._warm_up(function)
        samples_s: list[float] = []
        deadline_s = time.perf_counter() + self._budget_s
        while len(samples_s) < self._repeats:
            if len(samples_s) >= _LEAST_SAMPLES and time.perf_counter() > deadline_s:
                break
            samples_s.append(self.once(function, before=before) / calls)
        return Timing.of(samples_s)

    def _warm_up(self, function: Callable[[], object]) -> None:
        """At least once, for what a first call compiles and records."""
        function()
        end_s = time.perf_counter() + max(self._warm_up_s, _WAKING_S * self._asleep)
        self._asleep = False
        while time.perf_counter() < end_s:
            self.once(function)
