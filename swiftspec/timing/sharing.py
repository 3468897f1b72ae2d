"""Sharing costs: seconds that every sequence of a step beyond the first adds to it.

A step of B sequences with R rows in all takes T(B, R, context) = T(1, R, context) + (B - 1) (d0 + d1 context): the
matrices are read once for all rows, but each sequence has a KV cache and an attention loop of its own. Between steps,
the host's time of one request is spent in full, and a share of it for each further one.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations
from typing import Annotated, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from swiftspec.errors import FieldError
from swiftspec.files.document import Facts
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance, weakest

MOST_SEQUENCES = 4096  # more than any engine runs at once
_ROUNDS, _LEAST_DEVIATION = 30, 1e-6
_Seconds = Annotated[float, Field(gt=0, le=1e6)]
_Cost = Annotated[float, Field(ge=0, le=1e6)]
_Error = Annotated[float, Field(ge=0)]
_Degree = Annotated[int, Field(ge=1, le=65536)]
_Array = npt.NDArray[np.float64]


class SharingTable(NamedTuple):
    """Steps whose sequences all cost the same. Fields as in `StepPoint`."""

    role: Role
    degree: int
    ranks: int
    peer_busy: bool


class _OfTable(Facts):
    role: Role
    degree: _Degree
    ranks: _Degree = 1
    peer_busy: bool

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.degree % self.ranks:
            raise FieldError("ranks", self.ranks, f"expected a divisor of degree {self.degree}")
        return self

    @property
    def table(self) -> SharingTable:
        """The steps that it tells of."""
        return SharingTable(self.role, self.degree, self.ranks, self.peer_busy)


class SharingPoint(_OfTable):
    """A step as it was measured, a target's verification or a draft's expansion.

    sequences: sequences in the step. rows: of all sequences together, equally many of each. context: slots of each
    sequence's cache in use before it. median_s: median of its seconds.
    """

    sequences: int = Field(ge=1, le=MOST_SEQUENCES)
    rows: int = Field(ge=1)
    context: int = Field(ge=0)
    median_s: _Seconds
    num_samples: int = Field(ge=1)
    provenance: Provenance

    @model_validator(mode="after")
    def _shared(self) -> Self:
        if self.rows % self.sequences:
            raise ValueError(f"rows is {self.rows}; expected a multiple of sequences, {self.sequences}")
        return self


class SharingCost(_OfTable):
    """Cost of each sequence of a step beyond the first.

    sequence_s: d0, seconds for the sequence itself. slot_s: d1, seconds for every slot of its context. median_error,
    largest_error: of the fit, as shares of a step's measured seconds; None if nothing was measured. most_slots: of a
    cache that keeps no more; None, and absent from the file, for one that keeps all.
    """

    sequence_s: _Cost
    slot_s: _Cost
    most_slots: int | None = Field(default=None, ge=1, exclude_if=lambda most: most is None)
    median_error: _Error | None = None
    largest_error: _Error | None = None
    provenance: Provenance

    def seconds(self, context: float) -> float:
        """Seconds of one further sequence of this context."""
        return self.sequence_s + self.slot_s * (context if self.most_slots is None else min(context, self.most_slots))


class Sharing(Facts):
    """Sharing costs of a profile, and the points that they were fitted to, if they were measured.

    host_share: share of one request's host time that each further request of a step adds; None if not measured.
    """

    points: tuple[SharingPoint, ...] = ()
    costs: tuple[SharingCost, ...]
    host_share: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _once(self) -> Self:
        tables = [cost.table for cost in self.costs]
        twice = next((table for table in tables if tables.count(table) > 1), None)
        if twice is not None:
            what = ", ".join(str(part) for part in twice)
            raise ValueError(f"costs holds {tables.count(twice)} entries of ({what}); expected one each")
        return self

    def scaled(self, factor: Callable[[SharingTable], float]) -> Self:
        """The same costs, scaled by a factor of their table."""
        costs = [
            cost.model_copy(update={"sequence_s": by * cost.sequence_s, "slot_s": by * cost.slot_s})
            for cost in self.costs
            for by in [factor(cost.table)]
        ]
        return self.model_copy(update={"costs": tuple(costs)})


def fit_costs(points: Iterable[SharingPoint]) -> tuple[SharingCost, ...]:
    """Cost of every table with steps of several sequences, and of one with as many rows at the same context.

    Least sum of relative errors, with neither part of the cost below 0. A step that something else slowed down counts
    no more than any other, as it would with squares. From steps at a single context, all of the cost is the sequence's
    own.
    """
    tables: dict[SharingTable, list[SharingPoint]] = {}
    for point in points:
        tables.setdefault(point.table, []).append(point)
    costs = (_fit(table, of_table) for table, of_table in tables.items())
    return tuple(cost for cost in costs if cost is not None)


def _fit(table: SharingTable, points: Sequence[SharingPoint]) -> SharingCost | None:
    alone_s = {(point.rows, point.context): point.median_s for point in points if point.sequences == 1}
    shared = [point for point in points if point.sequences > 1 and (point.rows, point.context) in alone_s]
    if not shared:
        return None
    measured_s = np.array([point.median_s for point in shared])
    reference_s = np.array([alone_s[point.rows, point.context] for point in shared])
    further = np.array([point.sequences - 1 for point in shared], float)
    contexts = np.array([point.context for point in shared], float)
    columns = np.stack([further, further * contexts], axis=1)
    if len(set(contexts.tolist())) == 1:
        columns[:, 1] = 0.0
    found = _least_deviations(columns / measured_s[:, None], (measured_s - reference_s) / measured_s)
    errors = np.abs((reference_s + columns @ found) / measured_s - 1)
    return SharingCost(
        **table._asdict(),
        sequence_s=float(found[0]),
        slot_s=float(found[1]),
        median_error=float(np.median(errors)),
        largest_error=float(errors.max()),
        provenance=weakest(point.provenance for point in shared),
    )


def _least_deviations(columns: _Array, values: _Array) -> _Array:
    """Two factors, neither below 0, by squares whose weights fall with the deviation. columns (values, 2)."""
    found = never_negative(columns, values)
    for _ in range(_ROUNDS):
        weights = 1 / np.sqrt(np.maximum(np.abs(values - columns @ found), _LEAST_DEVIATION))
        found = never_negative(columns * weights[:, None], values * weights)
    return found


def never_negative(columns: _Array, wanted: _Array) -> _Array:
    """Least squares with factors of at least 0: the best of all choices of which are above it. columns (values, few).

    The costs are few, and scipy.optimize takes a fifth of a second to load, which every plan would wait for.
    """
    count = columns.shape[1]
    best, least = np.zeros(count), float(np.sum(wanted**2))
    for chosen in chain.from_iterable(combinations(range(count), size) for size in range(1, count + 1)):
        found, *_ = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)
        missed = float(np.sum((columns[:, chosen] @ found - wanted) ** 2))
        if missed < least and (found >= 0).all():
            best, least = np.zeros(count), missed
            best[list(chosen)] = found
    return best
