"""Seconds of one matrix product by its number of rows, padded as an engine pads it.

Engines capture a graph for each of a few numbers of rows and pad a forward up to the next one: powers of two up to 64
in this project, similar elsewhere. An engine may also use a larger graph that happens to be faster, so a product never
costs more than the same one with more rows. In most tables that changes a few percent; in one (vLLM's fp8 on B200) a
single row takes 1.7 times as long as eight.

Only powers of two are compared. The tables hold dozens of row counts, whose times differ by 10 to 15 % between
neighbours, mostly because a clock was briefly low; the minimum over all of them would be 4 to 6 % too short.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from swiftspec.costmodel.kernel_latency import KernelTime
from swiftspec.timing.latency import Provenance, weakest

__all__ = ["RowCurve"]

_MOST_PADDED = 128  # rows: a larger forward is a prompt, and is not padded


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCurve:
    """Cost of a GEMM against its number of rows.

    Attributes
    ----------
    rows : tuple of int
        Knots, ascending.
    times : tuple of KernelTime
        At the knots; seconds never fall.
    """

    rows: tuple[int, ...]
    times: tuple[KernelTime, ...]

    @classmethod
    def padded(cls, times: Sequence[tuple[int, KernelTime]]) -> "RowCurve":
        """From times by rows, ascending: at each power of two the minimum of its time and those of larger ones.

        If no number of rows is a power of two, all of them are knots.
        """
        known = [(rows, time) for rows, time in times if rows.bit_count() == 1] or list(times)
        least = known[-1][1]
        falling = []
        for _, time in reversed(known):
            least = min(least, time, key=lambda candidate: candidate.seconds)
            falling.append(least)
        return cls(rows=tuple(rows for rows, _ in known), times=tuple(reversed(falling)))

    def at(self, rows: int) -> KernelTime:
        """Time at the next knot up to 128 rows; beyond, log-linear; after the last knot, the time there."""
        right = bisect_left(self.rows, rows)
        if right == len(self.rows):
            return self.times[-1]
        after = self.times[right]
        if right == 0 or self.rows[right] <= max(rows, _MOST_PADDED):
            return after
        before = self.times[right - 1]
        share = log(rows / self.rows[right - 1]) / log(self.rows[right] / self.rows[right - 1])
        seconds = before.seconds * (after.seconds / before.seconds) ** share
        return KernelTime(seconds, weakest((before.provenance, after.provenance, Provenance.INTERPOLATED)))
