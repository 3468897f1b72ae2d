"""Values on a grid with gaps, interpolated between neighbours: linearly in the logarithms of axes and values."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import product
from math import exp, log, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_SPIKE = 1.4  # times both of its neighbours


class GridValue(NamedTuple):
    """A value; whether it is a grid point's own; whether it is the nearest one, as there is none around the point."""

    value: float
    exact: bool
    borrowed: bool


class Grid:
    """Positive values over positive coordinates.

    points: array (N, D). Coordinates.
    axes: knots of every axis, ascending.
    values: array (N,). Of several values at one point the last counts.
    smooth_axis: values more than 1.4 times both of their neighbours along this axis count as measurement glitches: they
        are replaced by interpolation between the neighbours, and no longer count as measured.
    rising_axis: along this axis a value is at most that of any later knot: an exchange may be padded to a larger one.
    """

    def __init__(
        self,
        points: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        smooth_axis: int | None = None,
        rising_axis: int | None = None,
    ) -> None:
        coordinates = np.asarray(points, float)
        knots, places = zip(*(np.unique(column, return_inverse=True) for column in coordinates.T), strict=True)
        self.axes: list[list[float]] = [axis.tolist() for axis in knots]
        self._values = np.full([len(axis) for axis in knots], np.nan)
        self._values[places] = values
        self._measured = ~np.isnan(self._values)
        if smooth_axis is not None:
            _smooth(self._values, self._measured, smooth_axis)
        if rising_axis is not None:
            flipped = np.flip(self._values, rising_axis)
            least = np.flip(np.fmin.accumulate(flipped, rising_axis), rising_axis)
            self._values = np.where(np.isnan(self._values), np.nan, least)  # gaps stay

    def at(self, *point: float) -> GridValue:
        """The value at a point; beyond an axis' ends, the value at the end; at gaps, from the remaining knots."""
        brackets = [_bracket(axis, coordinate) for axis, coordinate in zip(self.axes, point, strict=True)]
        total = weights = 0.0
        for corner in product(*brackets):
            place = tuple(index for index, _ in corner)
            value = self._values[place]
            if value == value:  # not a gap
                weight = prod(share for _, share in corner)
                total, weights = total + weight * log(value), weights + weight
        if not weights:
            return GridValue(self._nearest(point), exact=False, borrowed=True)
        if any(len(bracket) > 1 for bracket in brackets):
            return GridValue(exp(total / weights), exact=False, borrowed=False)
        is_knot = all(axis[index] == at for axis, (index, _), at in zip(self.axes, corner, point, strict=True))
        return GridValue(float(value), exact=is_knot and bool(self._measured[place]), borrowed=False)

    def _nearest(self, point: Sequence[float]) -> float:
        places = np.argwhere(~np.isnan(self._values))
        logs = [np.log(np.asarray(axis))[places[:, i]] - log(point[i]) for i, axis in enumerate(self.axes)]
        best = int(np.argmin(sum(distance**2 for distance in logs)))
        return float(self._values[tuple(places[best])])


def _bracket(axis: Sequence[float], coordinate: float) -> tuple[tuple[int, float], ...]:
    """Knots around a coordinate with their weights: a single knot at a knot or beyond the ends."""
    right = min(bisect_left(axis, coordinate), len(axis) - 1)
    if right == 0 or coordinate >= axis[right]:
        return ((right, 1.0),)
    share = log(coordinate / axis[right - 1]) / log(axis[right] / axis[right - 1])
    return (right - 1, 1.0 - share), (right, share)


def _smooth(values: npt.NDArray[np.float64], measured: npt.NDArray[np.bool_], axis: int) -> None:
    """Replace spikes along an axis, in place. Neighbours are grid neighbours: a value next to a gap is kept."""
    lines, known = np.moveaxis(values, axis, -1), np.moveaxis(measured, axis, -1)
    before, here, after = lines[..., :-2], lines[..., 1:-1], lines[..., 2:]
    with np.errstate(invalid="ignore"):
        spikes = (here > _SPIKE * before) & (here > _SPIKE * after)
    between = np.sqrt(before * after)
    here[spikes] = between[spikes]
    known[..., 1:-1][spikes] = False
