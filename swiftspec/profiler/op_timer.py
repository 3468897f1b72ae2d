"""Timer of calls whose arguments come from memory, as weights do, rather than from a cache."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swiftspec.engine.model.gpu.cuda_graph import GraphPool, Replay

Arguments = Sequence[tuple[Any, ...]]

_LOW, _HIGH = 0.2, 0.8
_LEAST_SAMPLES = 5
# A graph holds a call per copy. For arguments so small that all copies fit the cache, the launch dominates anyway.
_MOST_COPIES = 128
_CACHES = 4  # of data read in turn, a cache may keep a part: at most a quarter if the data is four times as large
_WAKING_S = 0.5  # an idle GPU takes this long to raise its clocks
_CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_CPU_CACHE_BYTES = 32 << 20  # where the system does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call: the median, and the 20 % and 80 % quantiles of the samples."""

    median_s: float
    low_s: float
    high_s: float
    num_samples: int

    @classmethod
    def of(cls, samples_s: Iterable[float]) -> "Timing":
        """ValueError without samples."""
        samples = np.fromiter(samples_s, float)
        if not samples.size:
            raise ValueError("timing of no samples; expected at least one")
        low_s, median_s, high_s = np.quantile(samples, [_LOW, 0.5, _HIGH]).tolist()
        return cls(median_s=median_s, low_s=low_s, high_s=high_s, num_samples=samples.size)

    @property
    def spread(self) -> float:
        """Distance between the quantiles, as a share of the median."""
        return (self.high_s - self.low_s) / self.median_s


def num_copies(num_bytes: int, cached_bytes: int) -> int:
    """Number of copies of `num_bytes` that together exceed a cache four times; at most 128.

    One copy if the bytes are negligible: in a forward, too, data that the previous kernel wrote is in the cache.
    """
    return min(_MOST_COPIES, _CACHES * cached_bytes // num_bytes + 1) if num_bytes > 0 else 1


def cache_bytes(device: torch.device) -> int:
    """Bytes of a device's last-level cache, shared by everything that computes there."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    try:
        size = _CPU_CACHE.read_text().strip()
        return int(size.removesuffix("K")) << 10
    except (OSError, ValueError):
        return _CPU_CACHE_BYTES


class OpTimer:
    """Times calls on one device: by its events on a GPU, by the host's clock on a CPU.

    repeats: samples of a timing; fewer where they take longer than `budget_s`, but never below 5.
    warm_up_s: seconds for which a call is repeated before the first sample; at least half a second at first on a GPU.
    budget_s: seconds after which a timing ends.
    in_a_row: calls in a graph, at least.
    cached_bytes: cache size that arguments must exceed; the device's own if not given.
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
        self.device = torch.device(device)
        self.cached_bytes = cache_bytes(self.device) if cached_bytes is None else cached_bytes
        self._repeats, self._warm_up_s, self._budget_s, self._in_a_row = repeats, warm_up_s, budget_s, in_a_row
        self._asleep = self.device.type == "cuda"

    def copies(self, num_bytes: int) -> int:
        """Number of arguments of `num_bytes` to take in turn, so that none is cached."""
        return num_copies(num_bytes, self.cached_bytes)

    def eager(self, call: Callable[..., object], arguments: Arguments = ((),)) -> Timing:
        """Seconds of one call, launched on its own; on a GPU this includes host time beyond the kernel's."""
        in_turn = cycle(arguments)
        return self._measure(lambda: call(*next(in_turn)), calls=1)

    def graphed(
        self, call: Callable[..., object], arguments: Arguments = ((),), *, in_a_row: int | None = None
    ) -> Timing:
        """Seconds of one call in a sequence of many, on a GPU in one CUDA graph, as in a forward.

        Every argument is used equally often, in at least `in_a_row` calls. A sample is the mean of one replay, launched
        while another one runs, so that the host's time is not included.
        """
        calls = -(-(in_a_row or self._in_a_row) // len(arguments)) * len(arguments)

        def all_of_them() -> None:
            for turn in range(calls):
                call(*arguments[turn % len(arguments)])

        replay = Replay(all_of_them, GraphPool(self.device))
        return self._measure(replay, calls=calls, before=replay if self.device.type == "cuda" else None)

    def once(self, function: Callable[[], object], *, before: Callable[[], object] | None = None) -> float:
        """Seconds of a single cold call, without warm-up. before: keeps a GPU busy until the call is launched."""
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
        """Call at least once, since a first call compiles and records."""
        function()
        end_s = time.perf_counter() + max(self._warm_up_s, _WAKING_S * self._asleep)
        self._asleep = False
        while time.perf_counter() < end_s:
            self.once(function)
