"""Drift of one kind of forward by its rows: slower memory shows in single rows, and hardly in many."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

__all__ = ["RowFactors", "factor_at"]


@dataclass(frozen=True, slots=True)
class RowFactors:
    """Present over profiled time of forwards.

    Parameters
    ----------
    by_rows : mapping from int to float
        At least one; between these numbers of rows factors are interpolated, beyond them they stay as they are.
    """

    by_rows: Mapping[int, float]

    @property
    def overall(self) -> float:
        """The median."""
        return median(self.by_rows.values())

    def at(self, rows: int) -> float:
        """The factor of forwards of so many rows."""
        known = sorted(self.by_rows)
        return float(np.interp(rows, known, [self.by_rows[each] for each in known]))


def factor_at(factor: float | RowFactors, rows: int | None = None) -> float:
    """A factor at a number of rows; over all of them if none is given."""
    if isinstance(factor, RowFactors):
        return factor.overall if rows is None else factor.at(rows)
    return factor
