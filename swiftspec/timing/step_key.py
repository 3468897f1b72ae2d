"""Keys of forwards' times: what a time is looked up by, and how far a machine has drifted from it. Plain data."""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

import numpy as np

from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase

# Present over profiled time of forwards of one table, by rows: slower memory shows in single rows, and hardly in many.
RowFactors = Mapping[int, float]


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


def factor_at(factor: float | RowFactors, rows: int | None = None) -> float:
    """A factor at a number of rows, interpolated between the known ones; their median if none is given."""
    if not isinstance(factor, Mapping):
        return factor
    if rows is None:
        return median(factor.values())
    known = sorted(factor)
    return float(np.interp(rows, known, [factor[each] for each in known]))
