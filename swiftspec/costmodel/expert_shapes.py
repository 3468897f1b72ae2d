"""Shapes of routed experts in op tables, shapes that lie between them, and their times by rows.

Experts that were not measured take the time of their roofline, divided by the share of it that the nearest measured
ones reach with as many rows. With few rows that is a share of the bandwidth, with many one of the FLOP/s.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import dist, exp, log
from typing import NamedTuple

import numpy as np

from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.routing import independent
from swiftspec.models.layer_parts import Experts

_NEAREST = 4
# Of the logarithms of sizes, from the nearest measured shape: three times as wide, or twice in two sizes. Beyond it the
# shares of other kernels say little.
_FARTHEST = 1.1
_SATURATED = 0.01  # of the experts: row counts that differ by less are interpolated by rows


class ExpertShape(NamedTuple):
    """Experts of one layer as op tables know them: `parts` of every one's width, or whole ones on `holders` devices."""

    dtype: str
    hidden: int
    size: int
    active: int
    experts: int
    parts: int
    holders: int

    @classmethod
    def of(cls, part: Experts, hidden_size: int, quant: str) -> "ExpertShape":
        """Shape of a shard's experts."""
        parts, holders = (1, part.num_devices) if part.is_divided_whole else (part.num_devices, 1)
        hidden = part.latent_size or hidden_size
        return cls(quant, hidden, part.size, part.num_active, part.num_experts, parts, holders)

    @property
    def part(self) -> Experts:
        """A shard's experts of this shape."""
        return Experts(
            num_experts=self.experts,
            num_active=self.active,
            size=self.size,
            is_divided_whole=self.holders > 1,
            num_devices=self.parts * self.holders,
        )

    def distance(self, other: "ExpertShape") -> float:
        """Distance of the logarithms of sizes."""
        return dist(self._sizes, other._sizes)

    @property
    def _sizes(self) -> tuple[float, ...]:
        sizes = (self.hidden, self.size / self.parts, self.experts / self.holders, self.active, self.holders)
        return tuple(map(log, sizes))

    def is_measured(self, tables: OpTables) -> bool:
        """Whether tables have such experts in this format, divided in some way."""
        columns = tables.rows("experts", dtype=self.dtype)
        sizes = zip(*(columns[name].tolist() for name in self._fields[1:5]), strict=True)
        return self[1:5] in set(sizes)

    def touched(self, rows: float) -> float:
        """Experts that independently routed rows touch."""
        return independent(rows, num_experts=self.experts, num_active=self.active)

    def roofline_s(self, roofline: Kernels, rows: int) -> float:
        """Seconds of independently routed rows, by roofline."""
        touched, hidden, quant = self.touched(rows), self.hidden, self.dtype
        return roofline.experts(self.part, rows=rows, touched=touched, hidden_size=hidden, quant=quant).seconds


def nearest(wanted: ExpertShape, known: Iterable[ExpertShape]) -> list[ExpertShape]:
    """Up to four measured shapes of the same format, nearest first; none if all are far from the wanted one."""
    alike = sorted((shape for shape in known if shape.dtype == wanted.dtype), key=wanted.distance)
    return alike[:_NEAREST] if alike and wanted.distance(alike[0]) <= _FARTHEST else []


def interpolated(
    wanted: ExpertShape, measured: Mapping[ExpertShape, Mapping[int, float]], roofline: Kernels
) -> dict[int, float]:
    """Seconds of a shape by rows, at the rows of the nearest of these measured ones that all of them have.

    measured: seconds by rows of one library's kernels. Shares are averaged as logarithms, with the inverse squares of
    distances as weights.
    """
    near = nearest(wanted, measured)
    weights = [1 / (1e-6 + wanted.distance(shape) ** 2) for shape in near]
    common = set.intersection(*(set(measured[shape]) for shape in near)) if near else set()
    found = {}
    for rows in sorted(common):
        slower = [log(measured[shape][rows] / shape.roofline_s(roofline, rows)) for shape in near]
        mean = sum(weight * value for weight, value in zip(weights, slower, strict=True)) / sum(weights)
        found[rows] = wanted.roofline_s(roofline, rows) * exp(mean)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCurve:
    """Seconds of one layer's routed experts by rows: a start, and a time for each expert that the rows touch."""

    kernel: str
    shape: ExpertShape
    rows: tuple[int, ...]  # measured, ascending
    seconds: tuple[float, ...]  # at these; more rows never take less, since a forward can be padded

    @classmethod
    def of(cls, kernel: str, shape: ExpertShape, seconds: Mapping[int, float]) -> "ExpertCurve":
        rows = tuple(sorted(seconds))
        least = np.minimum.accumulate([seconds[count] for count in reversed(rows)])[::-1]
        return cls(kernel=kernel, shape=shape, rows=rows, seconds=tuple(float(value) for value in least))

    def at(self, rows: float) -> float:
        """Seconds of this many rows with independent routing, which need not be whole: linear in experts touched."""
        if rows <= self.rows[0]:
            return self.seconds[0]
        if rows >= self.rows[-1]:
            return self.seconds[-1] * rows / self.rows[-1]
        right = int(np.searchsorted(self.rows, rows))
        touched = [self.shape.touched(count) for count in (self.rows[right - 1], rows, self.rows[right])]
        if touched[2] - touched[0] > _SATURATED * self.shape.experts:
            share = (touched[1] - touched[0]) / (touched[2] - touched[0])
        else:
            share = (rows - self.rows[right - 1]) / (self.rows[right] - self.rows[right - 1])
        before, after = self.seconds[right - 1], self.seconds[right]
        return before + share * (after - before)

    def touching(self, experts: float) -> float:
        """Seconds of the rows that touch this many experts."""
        free = max(1e-12, 1 - experts / self.shape.experts)
        if self.shape.active == self.shape.experts:
            return self.at(1)
        return self.at(log(free) / log(1 - self.shape.active / self.shape.experts))
