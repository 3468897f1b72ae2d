"""Rows of a backtest: published and predicted figures, and the fitted constants."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

# Tokens per round of a drafter without records, from others on the same class of text.
BY_TEXT = "tokens per round by text"
# Quantities of loads: requests that share a server.
TPOT, LOAD_TIME, FIRST_TOKEN = "TPOT, ms", "mean E2E, ms", "TTFT p50, ms"
# Quantities of sparse models, whose errors are larger than those of dense ones.
SPARSE_TPOT, SPARSE_TOKENS, SPARSE_RATIO = "TPOT of a sparse model, ms", "tokens/s of a sparse model", "times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure and its prediction, both in the unit that `quantity` names."""

    name: str
    quantity: str
    published: float
    predicted: float
    error_leave_one_out: float | None
    source: str

    @classmethod
    def unfitted(cls, name: str, quantity: str, published: float, predicted: float, source: str) -> "Row":
        """Row of a prediction that was not fitted to it, so that its error is also the leave-one-out error."""
        return cls(
            name=name,
            quantity=quantity,
            published=published,
            predicted=predicted,
            error_leave_one_out=predicted / published - 1,
            source=source,
        )

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A fitted constant: `value` in `unit`, and the data it was fitted on."""

    name: str
    value: float
    unit: str
    fitted_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows of one kind, and the constants they use. `skipped`: number of loads that are not predicted, by reason."""

    title: str
    rows: tuple[Row, ...]
    constants: tuple[Constant, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """All sections."""

    sections: tuple[Section, ...]

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    @property
    def constants(self) -> list[Constant]:
        return [constant for section in self.sections for constant in section.constants]

    @property
    def skipped(self) -> Mapping[str, int]:
        """Number of loads that are not predicted, by reason: a clause."""
        total: Counter[str] = Counter()
        for section in self.sections:
            total.update(section.skipped)
        return total


def median_error(rows: Sequence[Row], *, left_out: bool) -> float:
    """Median absolute error; `left_out`: of predictions made without the row."""
    return median(_errors(rows, left_out))


def mean_error(rows: Sequence[Row], *, left_out: bool) -> float:
    """Mean absolute error (MAPE)."""
    return mean(_errors(rows, left_out))


def _errors(rows: Sequence[Row], left_out: bool) -> list[float]:
    return [
        abs(row.error_leave_one_out if left_out and row.error_leave_one_out is not None else row.error) for row in rows
    ]
