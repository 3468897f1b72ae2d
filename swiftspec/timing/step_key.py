"""Keys of forwards' times: what a time is looked up by, and how far a machine has drifted from it. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase


class StepTable(NamedTuple):
    """Steps of one kind, over rows and context. Fields as in `StepKey`."""

    role: Role
    phase: Phase
    degree: int
    peer_busy: bool
    cold: bool = False
    ranks: int = 1


class StepKey(NamedTuple):
    """One forward of a role's model, as far as its time depends on it.

    Attributes
    ----------
    role : Role
        Whose model computes.
    phase : Phase
        One that computes.
    degree : int
        Devices that divide the model.
    rows : int
        Tokens in the forward, a prompt's among them, of all sequences together.
    context : int
        Tokens in a sequence's cache before it; of several sequences their mean over the rows.
    sequences : int
    ranks : int
        On a CPU, processes that divide the model.
    peer_busy : bool
        Whether the other model computes meanwhile.
    cold : bool
        Whether the weights have left the processor's caches since the last forward.
    """

    role: Role
    phase: Phase
    degree: int
    rows: int
    context: int
    sequences: int = 1
    ranks: int = 1
    peer_busy: bool = False
    cold: bool = False

    @property
    def table(self) -> StepTable:
        """The table that holds its time."""
        return StepTable(self.role, self.phase, self.degree, self.peer_busy, self.cold, self.ranks)


@dataclass(frozen=True, slots=True)
class RowFactors:
    """Present over profiled time of forwards of one table: slower memory shows in single rows, and hardly in many.

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
