"""Profile: measured latencies of one machine and one model pair, with their provenance. No torch here."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from swiftspec.documents import Document, Facts, ModelRef
from swiftspec.policies.effects import Role
from swiftspec.timeline import COMPUTING, Phase

__all__ = ["NUM_QUANTILES", "HostPoint", "Latency", "Profile", "Provenance", "StepPoint", "StepTable", "weakest"]

NUM_QUANTILES = 20


class Provenance(StrEnum):
    """How a latency is known, best first. A sum is as weak as the weakest of its parts."""

    MEASURED = "measured"
    PUBLISHED = "published"
    INTERPOLATED = "interpolated"
    COMPOSED = "composed"
    ROOFLINE = "roofline"
    ASSUMED = "assumed"


_STRENGTH = {provenance: strength for strength, provenance in enumerate(Provenance)}


def weakest(provenances: Iterable[Provenance]) -> Provenance:
    """The provenance of a sum."""
    return max(provenances, key=_STRENGTH.__getitem__)


class Latency(NamedTuple):
    """A distribution in seconds: `quantiles_s[i]` is the (i + 0.5) / NUM_QUANTILES quantile. Their mean is the mean."""

    quantiles_s: tuple[float, ...]
    provenance: Provenance

    @property
    def mean_s(self) -> float:
        return sum(self.quantiles_s) / len(self.quantiles_s)

    @property
    def median_s(self) -> float:
        middle = len(self.quantiles_s) // 2
        return (self.quantiles_s[middle - 1] + self.quantiles_s[middle]) / 2

    @classmethod
    def of_samples(cls, samples_s: Iterable[float], provenance: Provenance) -> "Latency":
        """The distribution of measured seconds."""
        levels = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
        return cls(tuple(np.quantile(np.fromiter(samples_s, float), levels).tolist()), provenance)


_Array = npt.NDArray[np.float64]
_Seconds = Annotated[float, Field(gt=0)]


class _Measured(Facts):
    quantiles_s: tuple[_Seconds, ...] = Field(min_length=NUM_QUANTILES, max_length=NUM_QUANTILES)
    num_samples: int = Field(ge=1)
    provenance: Provenance

    @field_validator("quantiles_s")
    @classmethod
    def _ascending(cls, quantiles_s: tuple[float, ...]) -> tuple[float, ...]:
        if any(left > right for left, right in pairwise(quantiles_s)):
            raise ValueError("expected seconds in ascending order")
        return quantiles_s

    @property
    def latency(self) -> Latency:
        return Latency(self.quantiles_s, self.provenance)


class StepTable(NamedTuple):
    """Steps of one kind, over rows and context."""

    role: Role
    phase: Phase
    degree: int
    peer_busy: bool


class StepPoint(_Measured):
    """One whole forward of a role's model, from launch to the answer on the host.

    degree: devices of the role's group (intra-op threads on CPU). peer_busy: whether the other group computed
    meanwhile. rows: tokens in the forward, a prefill's prompt length included; context: slots of the cache in use
    before it, measured as a prefix of that length.
    """

    role: Role
    phase: Phase
    degree: int = Field(ge=1)
    peer_busy: bool
    rows: int = Field(ge=1)
    context: int = Field(ge=0)

    @field_validator("phase")
    @classmethod
    def _forward(cls, phase: Phase) -> Phase:
        if phase not in COMPUTING:
            raise ValueError(f"expected a forward: {', '.join(sorted(COMPUTING))}")
        return phase

    @property
    def table(self) -> StepTable:
        return StepTable(self.role, self.phase, self.degree, self.peer_busy)


class HostPoint(_Measured):
    """What a role's process spends around an effect of this phase, its forward excluded, at this many rows.

    For `wait` it is the channel's hop: peer's send ended to message in hand.
    """

    phase: Phase
    rows: int = Field(ge=1)


class Profile(Document):
    """Latency tables of a model pair on a machine."""

    schema_name: ClassVar[str] = "swiftspec.profile"
    schema_version: ClassVar[int] = 1

    device: str
    num_devices: int = Field(ge=1)
    target: ModelRef
    draft: ModelRef
    steps: tuple[StepPoint, ...] = Field(min_length=1)
    host: tuple[HostPoint, ...]

    @model_validator(mode="after")
    def _measured_once(self) -> Self:
        steps = Counter((s.role, s.phase, s.degree, s.peer_busy, s.rows, s.context) for s in self.steps)
        for name, counts in (("steps", steps), ("host", Counter((point.phase, point.rows) for point in self.host))):
            key, count = counts.most_common(1)[0] if counts else ((), 0)
            if count > 1:
                what = ", ".join(str(part) for part in key)
                raise ValueError(f"{name} holds {count} entries of ({what}); expected one each")
        return self

    def step(
        self, phase: Phase, *, degree: int, peer_busy: bool, rows: int, context: int, role: Role | None = None
    ) -> Latency:
        """Latency of one whole forward; `role` says whose prefill, and follows from any other phase.

        Bilinear between the measured rows and contexts, flat in context beyond them, linear in rows beyond the last.
        A table with a busy peer that was not measured is that of an idle one, and says `assumed`.

        Raises
        ------
        ValueError
            If nothing was measured for this phase and degree.
        """
        role = role or (Role.DRAFT if phase in (Phase.EXPAND, Phase.FUZZY) else Role.TARGET)
        table = self._tables.get((role, phase, degree, peer_busy))
        assumed = table is None
        table = table or self._tables.get((role, phase, degree, not peer_busy))
        if table is None:
            degrees = self.degrees(phase, role=role)
            raise ValueError(f"degree is {degree}, but the {role}'s {phase} steps were measured at {degrees or 'none'}")
        latency = table.at(rows, context)
        return latency._replace(provenance=Provenance.ASSUMED) if assumed else latency

    def host_latency(self, phase: Phase, *, rows: int = 1) -> Latency | None:
        """Host time of an effect, linear in rows between measurements; None where the profile has none."""
        points = sorted((point for point in self.host if point.phase is phase), key=lambda point: point.rows)
        if not points:
            return None
        grid = np.array([point.quantiles_s for point in points])
        quantiles = _interpolate([point.rows for point in points], grid, rows)
        exact = [point.provenance for point in points if point.rows == rows]
        provenance = weakest(exact or [Provenance.INTERPOLATED, *[point.provenance for point in points]])
        return Latency(tuple(quantiles.tolist()), provenance)

    def retimed(self, factors: Mapping[StepTable, float]) -> Self:
        """The same profile with the steps of these tables so many times as long.

        A table without a factor has that of its counterpart with the peer in the other state, if there is one.
        """

        def factor(table: StepTable) -> float:
            return factors.get(table) or factors.get(table._replace(peer_busy=not table.peer_busy), 1.0)

        steps = tuple(
            step.model_copy(update={"quantiles_s": tuple(value * factor(step.table) for value in step.quantiles_s)})
            for step in self.steps
        )
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | {"steps": steps})

    def degrees(self, phase: Phase, *, role: Role) -> list[int]:
        """Degrees at which a role's steps of a phase are known, ascending."""
        return sorted({step.degree for step in self.steps if (step.role, step.phase) == (role, phase)})

    @cached_property
    def _tables(self) -> dict[tuple[Role, Phase, int, bool], "_Table"]:
        points: dict[tuple[Role, Phase, int, bool], list[StepPoint]] = {}
        for step in self.steps:
            points.setdefault((step.role, step.phase, step.degree, step.peer_busy), []).append(step)
        return {key: _Table(steps) for key, steps in points.items()}


class _Table:
    """Steps of one phase, degree and peer state, over rows and context."""

    def __init__(self, points: list[StepPoint]) -> None:
        self._by_rows: dict[int, list[StepPoint]] = {}
        for point in sorted(points, key=lambda point: (point.rows, point.context)):
            self._by_rows.setdefault(point.rows, []).append(point)
        self._cache: dict[tuple[int, int], Latency] = {}

    def at(self, rows: int, context: int) -> Latency:
        key = (rows, context)
        if key not in self._cache:
            self._cache[key] = self._interpolated(rows, context)
        return self._cache[key]

    def _interpolated(self, rows: int, context: int) -> Latency:
        measured_rows = list(self._by_rows)
        columns = np.array([self._at_context(points, context) for points in self._by_rows.values()])
        quantiles = np.maximum.accumulate(_interpolate(measured_rows, columns, rows))
        points = [point for column in self._by_rows.values() for point in column]
        exact = [point.provenance for point in points if (point.rows, point.context) == (rows, context)]
        provenance = weakest(exact or [Provenance.INTERPOLATED, *[point.provenance for point in points]])
        return Latency(tuple(quantiles.tolist()), provenance)

    def _at_context(self, points: list[StepPoint], context: int) -> _Array:
        contexts = [point.context for point in points]
        return _interpolate(contexts, np.array([p.quantiles_s for p in points]), min(context, contexts[-1]))


def _interpolate(knots: list[int], values: _Array, at: int) -> _Array:
    """Piecewise linear along axis 0: flat below the first knot, the last slope (never falling) above the last."""
    if at <= knots[0] or len(knots) == 1:
        edge: _Array = values[0] if at <= knots[0] else values[-1]
        return edge
    right = min(int(np.searchsorted(knots, at)), len(knots) - 1)
    left = right - 1
    weight = (at - knots[left]) / (knots[right] - knots[left])
    slope: _Array = values[right] - values[left]
    if weight > 1:
        beyond: _Array = values[right] + np.maximum(slope, 0.0) * (weight - 1)
        return beyond
    between: _Array = values[left] + slope * weight
    return between
