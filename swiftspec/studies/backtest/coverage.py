"""Coverage of published figures by the predicted intervals: 90 % of them should lie inside.

A row's interval is its prediction (made without the row if anything was fitted to it) times a factor from the known
errors. A known error is the root mean square over sources of each source's own error, so that a source with many rows
does not dominate; a new pair on a new machine is like another source. A source's rows are judged by the errors of the
other sources only.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, mean

from swiftspec.simulator.forward_errors import COMPOSED, SPARSE
from swiftspec.studies.backtest.rows import (
    BY_TEXT,
    FIRST_TOKEN,
    LOAD_TIME,
    SPARSE_RATIO,
    SPARSE_TOKENS,
    SPARSE_TPOT,
    TPOT,
    Row,
)

LEVEL = 0.9
_DEVIATIONS = NormalDist().inv_cdf((1 + LEVEL) / 2)


class Kind(StrEnum):
    """Kind of quantity in a row."""

    FORWARD = "forwards"
    KERNEL = "kernels"  # judged as forwards, which consist of them
    LOAD = "loads"
    SPARSE_LOAD = "loads of sparse models"  # whose errors stand for those of their forwards, too
    ACCEPTANCE = "tokens per round"
    USUAL_ACCEPTANCE = "tokens per round by text"  # of drafters without any record
    SPEED = "speeds"  # these depend on forwards and tokens per round
    SPARSE_SPEED = "speeds of sparse models"


_KINDS = {
    **dict.fromkeys(("forward, ms", "step, ms"), Kind.FORWARD),
    **dict.fromkeys((TPOT, LOAD_TIME, FIRST_TOKEN), Kind.LOAD),
    "kernel, us": Kind.KERNEL,
    SPARSE_TPOT: Kind.SPARSE_LOAD,
    **dict.fromkeys((SPARSE_TOKENS, SPARSE_RATIO), Kind.SPARSE_SPEED),
    "tokens per round": Kind.ACCEPTANCE,
    BY_TEXT: Kind.USUAL_ACCEPTANCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Number of rows of a kind, or of all kinds, that lie in their intervals."""

    name: str
    num_inside: int
    num_rows: int

    @property
    def share(self) -> float:
        return self.num_inside / self.num_rows


def coverage(rows: Sequence[Row]) -> list[Coverage]:
    """Coverage of all rows, then of each kind that occurs."""
    inside = {id(row): _is_inside(row, rows) for row in rows}
    groups: list[tuple[str, list[Row]]] = [("all", list(rows))]
    groups += [(kind, [row for row in rows if _kind(row) is kind]) for kind in Kind]
    return [
        Coverage(name=name, num_inside=sum(inside[id(row)] for row in group), num_rows=len(group))
        for name, group in groups
        if group
    ]


def known_error(kind: Kind, rows: Iterable[Row], *, but: str | None = None) -> float | None:
    """Relative error of forwards or of tokens per round over all sources but one; None without any row."""
    squares: dict[str, list[float]] = {}
    for row in rows:
        if _kind(row) is kind and (source := source_of(row)) != but:
            squares.setdefault(source, []).append(_log_error(row) ** 2)
    return math.sqrt(mean(mean(of_source) for of_source in squares.values())) if squares else None


def source_of(row: Row) -> str:
    """Publisher of a row; of a load also the model, which is what constants are fitted without."""
    publisher = row.source.partition(",")[0]
    return f"{publisher}, {row.name.split()[0]}" if _kind(row) in (Kind.LOAD, Kind.SPARSE_LOAD) else publisher


def _is_inside(row: Row, rows: Sequence[Row]) -> bool:
    kinds = (Kind.FORWARD, Kind.LOAD, Kind.SPARSE_LOAD, Kind.ACCEPTANCE, Kind.USUAL_ACCEPTANCE)
    errors = [known_error(kind, rows, but=source_of(row)) for kind in kinds]
    of_forwards, of_sparse, of_acceptance = errors[0] or COMPOSED, errors[2] or SPARSE, errors[3] or 0.0
    by_kind = {
        Kind.FORWARD: of_forwards,
        Kind.KERNEL: of_forwards,
        Kind.LOAD: errors[1] or of_forwards,
        Kind.SPARSE_LOAD: of_sparse,
        Kind.ACCEPTANCE: of_acceptance,
        Kind.USUAL_ACCEPTANCE: errors[4] or 0.0,
        Kind.SPEED: math.hypot(of_forwards, of_acceptance),
        Kind.SPARSE_SPEED: math.hypot(of_sparse, of_acceptance),
    }
    return abs(_log_error(row)) <= _DEVIATIONS * by_kind[_kind(row)]


def _kind(row: Row) -> Kind:
    return _KINDS.get(row.quantity, Kind.SPEED)


def _log_error(row: Row) -> float:
    left_out = row.error_leave_one_out
    return math.log1p(row.error if left_out is None else left_out)
