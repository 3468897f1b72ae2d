"""Step and host latencies, interpolated and extrapolated. Plain arrays, quick to copy to other processes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Latency, Part, Provenance, weakest
from swiftspec.timing.sharing import SharingCost, SharingTable
from swiftspec.timing.step_key import StepKey, StepTable
from swiftspec.timing.timeline import SHARE_OF_LAYERS, Phase
from swiftspec.timing.warm_up import WarmUpCost

# A CPU computes a prompt in chunks of 128 rows, the last one padded to one of a few sizes: any other size would be
# compiled when first needed, and would stay in memory (2.7 MB each for a model of 2 MB).
PREFILL_CHUNK = 128
_UNPADDED_ROWS, _ROW_UNIT = 32, 16
PREFILL_SIZES: tuple[int, ...] = (
    *range(1, _UNPADDED_ROWS + 1),
    *range(_UNPADDED_ROWS + _ROW_UNIT, PREFILL_CHUNK + 1, _ROW_UNIT),
)

_Array = npt.NDArray[np.float64]


def hop_rows(num_features: int) -> int:
    """Rows of the host point of a message's hop, beside which go features of so many tokens; 1 without any."""
    return 1 + num_features


def padded_rows(num_rows: int) -> int:
    """Rows computed where `num_rows` rows are wanted, a prompt's among them."""
    return num_rows if num_rows <= _UNPADDED_ROWS else -(-num_rows // _ROW_UNIT) * _ROW_UNIT


def prefill_rows(num_tokens: int) -> int:
    """Rows that a CPU computes for a prompt of `num_tokens`: whole chunks, and a last one that is padded."""
    whole, rest = divmod(num_tokens, PREFILL_CHUNK)
    return whole * PREFILL_CHUNK + (padded_rows(rest) if rest else 0)


class _Column(NamedTuple):
    """Points of one number of rows. values (contexts, NUM_QUANTILES + kinds of parts): seconds."""

    contexts: list[int]
    values: _Array


class StepGrid:
    """Steps of one table: bilinear between its rows and contexts, flat in context and linear in rows beyond them.

    points: rows, context and latency of each.
    in_capture_sizes: rows between known ones are not interpolated but padded to the next known number. in_chunks: rows
    are those that a CPU computes for a prompt, see `prefill_rows`.
    """

    def __init__(
        self,
        points: Iterable[tuple[int, int, Latency]],
        *,
        in_capture_sizes: bool = False,
        in_chunks: bool = False,
    ) -> None:
        self._in_capture_sizes = in_capture_sizes
        self._in_chunks = in_chunks
        ordered = sorted(points, key=itemgetter(0, 1))
        # Composition is a formula: it is as good between its points as at them.
        self._is_composed = all(latency.parts for *_, latency in ordered)
        kinds = {(part.name, part.provenance) for *_, latency in ordered for part in latency.parts}
        self._kinds = sorted(kinds) if self._is_composed else []
        by_rows = {rows: [*same] for rows, same in groupby(ordered, key=itemgetter(0))}
        self._rows = list(by_rows)
        self._columns = [self._column(column) for column in by_rows.values()]
        self._exact = {(rows, context): latency.provenance for rows, context, latency in ordered}
        self._between = weakest([Provenance.INTERPOLATED, *self._exact.values()])

    def _column(self, points: Sequence[tuple[int, int, Latency]]) -> _Column:
        values = []
        for *_, latency in points:
            held = {(part.name, part.provenance): part.seconds for part in latency.parts}
            values.append([*latency.quantiles_s, *[held.get(kind, 0.0) for kind in self._kinds]])
        return _Column([context for _, context, _ in points], np.array(values))

    @property
    def part_names(self) -> set[str]:
        """Names of the parts of its steps, if they are composed."""
        return {name for name, _ in self._kinds}

    @property
    def grid(self) -> list[tuple[int, int]]:
        """(rows, context) of every point."""
        return list(self._exact)

    def at(self, rows: int, context: int) -> Latency:
        if self._in_capture_sizes:
            rows = next((capture_size for capture_size in self._rows if capture_size >= rows), rows)
        if self._in_chunks:
            rows = prefill_rows(rows)
        values = self._at(rows, context)
        quantiles_s = tuple(np.maximum.accumulate(values[:NUM_QUANTILES]).tolist())
        if not self._is_composed:
            return Latency(quantiles_s, self._exact.get((rows, context), self._between))
        seconds = np.maximum(values[NUM_QUANTILES:], 0.0).tolist()
        parts = tuple(
            Part(name=name, seconds=value, provenance=provenance)
            for (name, provenance), value in zip(self._kinds, seconds, strict=True)
            if value
        )
        return Latency(quantiles_s, weakest(part.provenance for part in parts), parts)

    def means_s(self) -> _Array:
        """The mean of every point, in the order of `grid`."""
        return np.concatenate([column.values[:, :NUM_QUANTILES].mean(axis=1) for column in self._columns])

    def stretched(self, factor: Callable[[str], float]) -> "StepGrid":
        """The same steps with parts scaled by a factor of their name; steps without parts are unchanged."""
        factors = np.array([factor(name) for name, _ in self._kinds])
        return self._replaced([_stretched(column, factors) for column in self._columns]) if len(factors) else self

    def scaled(self, factor: float) -> "StepGrid":
        return self._replaced([column._replace(values=column.values * factor) for column in self._columns])

    def _replaced(self, columns: list[_Column]) -> "StepGrid":
        other = object.__new__(StepGrid)
        other.__dict__ = self.__dict__ | {"_columns": columns}
        return other

    def _at(self, rows: int, context: int) -> _Array:
        knots = self._rows
        if rows <= knots[0] or len(knots) == 1:
            return _in_column(self._columns[0 if rows <= knots[0] else -1], context)
        right = min(int(np.searchsorted(knots, rows)), len(knots) - 1)
        neighbours = [_in_column(self._columns[index], context) for index in (right - 1, right)]
        return _interpolate(knots[right - 1 : right + 1], np.array(neighbours), rows)


class HostGrid:
    """Host times of one phase by rows, linear between them."""

    def __init__(self, points: Mapping[int, Latency]) -> None:
        self._rows = sorted(points)
        self._values = np.array([points[rows].quantiles_s for rows in self._rows])
        self._provenances = [points[rows].provenance for rows in self._rows]

    def at(self, rows: int) -> Latency:
        quantiles = _interpolate(self._rows, self._values, rows)
        known = zip(self._rows, self._provenances, strict=True)
        exact = [provenance for at_rows, provenance in known if at_rows == rows]
        provenance = weakest(exact or [Provenance.INTERPOLATED, *self._provenances])
        return Latency(tuple(quantiles.tolist()), provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies of a profile without its other facts. `peers_interfere`, `sharing` ..: as in `Profile`.

    apart: those of a draft on devices of its own, where these are of another kind.
    """

    steps: Mapping[StepTable, StepGrid]
    host: Mapping[tuple[str, Phase], HostGrid]  # by policy
    peers_interfere: bool
    sharing: Mapping[SharingTable, SharingCost] = field(default_factory=dict)
    host_share: float = SWIFTSPEC.host_share
    warm_up: Mapping[tuple[Role, int, int], WarmUpCost] = field(default_factory=dict)  # by role, degree, ranks
    apart: "Latencies | None" = None

    def of(self, role: Role, layout: Layout) -> "Latencies":
        """The latencies of a role's forwards in a layout."""
        is_apart = role is Role.DRAFT and layout is Layout.DISAGGREGATED
        return self.apart if self.apart is not None and is_apart else self

    def step(self, key: StepKey) -> Latency:
        """As `Profile.step`."""
        table = key.table._replace(peer_busy=key.peer_busy and self.peers_interfere)
        grid = self._warm_or_cold(table)
        assumed = grid is None
        grid = grid or self._warm_or_cold(table._replace(peer_busy=not table.peer_busy))
        if grid is None:
            degrees = self.degrees(key.phase, role=key.role, ranks=key.ranks) or "none"
            of_ranks = f" of {key.ranks} ranks" if key.ranks > 1 else ""
            raise ValueError(
                f"degree is {key.degree}, but the {key.role}'s {key.phase} steps{of_ranks} were measured at {degrees}"
            )
        latency = grid.at(key.rows, key.context)
        return Latency(latency.quantiles_s, Provenance.ASSUMED) if assumed else latency

    def _warm_or_cold(self, table: StepTable) -> StepGrid | None:
        """The steps of a table, else of its warm counterpart: without a measured difference there is none."""
        return self.steps.get(table) or self.steps.get(table._replace(cold=False))

    def further_sequences(self, key: StepKey) -> tuple[float, Provenance]:
        """Seconds that the sequences beyond the first add to a step; none, and `assumed`, if that is not known.

        An unmeasured cost beside a busy peer equals that beside an idle one, and the reverse; if peers interfere, it is
        `assumed`.
        """
        peer_busy = key.peer_busy and self.peers_interfere
        table = SharingTable(key.role, key.degree, key.ranks, peer_busy)
        known = self.sharing.get(table)
        cost = known or self.sharing.get(table._replace(peer_busy=not peer_busy))
        each_s = cost.seconds(key.context) if cost else 0.0
        # It costs in every layer.
        added_s = (key.sequences - 1) * each_s * SHARE_OF_LAYERS.get(key.phase, 1.0)
        return added_s, known.provenance if known else Provenance.ASSUMED

    def host_latency(self, phase: Phase, *, rows: int = 1, policy: str = "") -> Latency | None:
        """As `Profile.host_latency`."""
        grid = self.host.get((policy, phase)) or self.host.get(("", phase))
        return grid.at(rows) if grid else None

    def degrees(self, phase: Phase, *, role: Role, ranks: int = 1) -> list[int]:
        """Degrees for which a role's steps of a phase are known with these ranks, ascending."""
        wanted = (role, phase, ranks)
        return sorted({table.degree for table in self.steps if (table.role, table.phase, table.ranks) == wanted})

    def ranks(self, degree: int, *, role: Role) -> list[int]:
        """Numbers of ranks for which a role's steps are known at a degree, ascending."""
        return sorted({table.ranks for table in self.steps if (table.role, table.degree) == (role, degree)})

    def changed(self, change: Callable[[StepTable, StepGrid], StepGrid]) -> Self:
        """The same latencies with every table replaced by the result of `change`."""
        steps = {table: change(table, grid) for table, grid in self.steps.items()}
        return replace(self, steps=steps)


def _stretched(column: _Column, factors: _Array) -> _Column:
    """The column with every distribution scaled like its mean, by the growth of its parts. factors (kinds,)."""
    quantiles, parts = np.split(column.values, [NUM_QUANTILES], axis=1)
    before = parts.sum(axis=1, keepdims=True)
    after = parts * factors
    growth = after.sum(axis=1, keepdims=True) / np.where(before > 0, before, 1.0)
    return column._replace(values=np.hstack([quantiles * np.where(before > 0, growth, 1.0), after]))


def _in_column(column: _Column, context: int) -> _Array:
    return _interpolate(column.contexts, column.values, min(context, column.contexts[-1]))


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
