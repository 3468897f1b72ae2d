"""A file of measurements predicted row by row, and the errors summed up."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from swiftspec.artifacts.gain import Gain, Verdict, interval_90
from swiftspec.engines.constants import Constants
from swiftspec.engines.description import StepLimits
from swiftspec.planner.under_load.loads import ArrayRun
from swiftspec.progress import Progress
from swiftspec.validation.published.rows import MeasuredRow, ReadRow, UnpredictedError

GAIN: Final = "speedup"  # the figure that is a gain over plain decoding
_FALLS_BEHIND: Final = 0.01  # seconds of wait for a second of arrivals
# Relative standard deviations that open conditions are taken to add: builds weeks apart differed by 1.6 times.
_GAP: Final = 0.1
_BUILD: Final = 0.25
BUILD: Final = "build"  # the first word of a gap: an engine between two releases


class LeaveOut(StrEnum):
    """What a row's constants were fitted without."""

    NONE = "none"
    MODEL = "model"
    SOURCE = "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure and its prediction, in the unit of its column, with the 90 % interval."""

    name: str
    measured: float
    predicted: float
    low: float
    high: float

    @classmethod
    def within(cls, name: str, *, measured: float, predicted: float, spread: float) -> Figure:
        """With the interval of a relative standard deviation."""
        low, high = interval_90(predicted, spread)
        return cls(name=name, measured=measured, predicted=predicted, low=low, high=high)

    @property
    def error(self) -> float:
        """Relative: + is too high."""
        return self.predicted / self.measured - 1

    @property
    def is_inside(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """One row.

    cells: the row as it came.
    kind: its class in summaries.
    num_requests: requests at once; predicted ones of a load by rate.
    figures: empty if the row was left out, overloaded, or measured while requests failed.
    left_out: why it was not predicted, a clause; empty if it was.
    gaps: what it leaves open.
    gain_spread: relative standard deviation of its gain over plain decoding.
    overloaded: of a load: whether it comes by a rate at which its queue grows without end.
    limits: under which it was predicted.
    """

    cells: Mapping[str, str]
    kind: str = ""
    num_requests: float = 0.0
    figures: tuple[Figure, ...] = ()
    left_out: str = ""
    gaps: tuple[str, ...] = ()
    gain_spread: float = 0.0
    overloaded: bool | None = None
    limits: str = ""

    def content(self, *, measured: bool = True) -> dict[str, Any]:
        """The row for JSON. Without `measured`, none of the measured columns."""
        columns = {figure.name for figure in self.figures}
        found: dict[str, Any] = {
            name: text
            for name, text in self.cells.items()
            if measured or not (name in columns or name in _TELLING or name.endswith("_ms"))
        }
        for figure in self.figures:
            found |= {
                f"predicted_{figure.name}": _short(figure.predicted),
                f"low_{figure.name}": _short(figure.low),
                f"high_{figure.name}": _short(figure.high),
            }
        if self.left_out:
            found["left_out"] = self.left_out
        if self.gaps:
            found["assumed"] = list(self.gaps)
        if self.overloaded is not None:
            found["overloaded"] = self.overloaded
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A row's load, as it was simulated.

    spread, ttft_spread, gain_spread: relative standard deviations of its latencies, of those until the first token, and
    of its gain over plain decoding.
    """

    run: ArrayRun
    limits: StepLimits
    spread: float
    ttft_spread: float
    gain_spread: float

    @classmethod
    def of(cls, row: MeasuredRow, constants: Constants) -> Prediction:
        serving, run = row.run(constants)
        gaps = [_BUILD if gap.startswith(BUILD) else _GAP for gap in row.gaps]
        spread, ttft_spread = math.hypot(constants.spread, *gaps), math.hypot(constants.ttft_spread, *gaps)
        gain_spread = math.hypot(constants.gain_spread, *[_GAP] * row.num_draft_gaps)
        return cls(run=run, limits=serving.limits, spread=spread, ttft_spread=ttft_spread, gain_spread=gain_spread)


def compared_rows(
    path: Path,
    read: Sequence[ReadRow],
    figures: Callable[[MeasuredRow, Prediction], Sequence[Figure]],
    *,
    leave_out: LeaveOut,
    done: Progress,
) -> list[RowComparison]:
    """Each row of a file, compared. figures: those that a row has, in the order of its columns.

    ValueError names the file and the row of a figure that is none.
    """
    rows = []
    for number, (cells, row) in enumerate(read, 1):
        try:
            rows.append(_compared(cells, row, figures, leave_out))
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from None
        done(number, len(read), path.name)
    return rows


def _compared(
    cells: Mapping[str, str],
    row: MeasuredRow | UnpredictedError,
    figures: Callable[[MeasuredRow, Prediction], Sequence[Figure]],
    leave_out: LeaveOut,
) -> RowComparison:
    if isinstance(row, UnpredictedError):
        return RowComparison(cells=cells, left_out=str(row))
    left_out = {LeaveOut.MODEL: f"model:{row.model}", LeaveOut.SOURCE: f"source:{row.source}"}.get(leave_out)
    try:
        found = Prediction.of(row, row.engine.constants(left_out=left_out))
    except ValueError as reason:
        return RowComparison(cells=cells, left_out=str(reason))
    return RowComparison(
        cells=cells,
        kind=row.kind,
        num_requests=row.requests.num_clients or found.run.mean_running,
        figures=tuple(figures(row, found)),
        gaps=row.gaps,
        gain_spread=found.gain_spread,
        overloaded=not row.is_closed and found.run.falls_behind > _FALLS_BEHIND,
        limits=f"{found.limits.step_tokens} tokens and {found.limits.requests} requests a step",
    )


_MANY: Final = ((1, 1, "1 request"), (2, 16, "2 to 16"), (17, 256, "17 to 256"), (257, 10**9, "257 and more"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows of a file. failed: numbers of those that are no part of the summary's errors: requests failed."""

    rows: tuple[RowComparison, ...]
    leave_out: LeaveOut = LeaveOut.NONE
    failed: frozenset[int] = field(default_factory=frozenset)

    def summary(self) -> dict[str, Any]:
        """Errors by class and by requests at once, for each figure; what was said of gains; rows left out."""
        counted = [row for index, row in enumerate(self.rows) if row.figures and index not in self.failed]
        groups: dict[str, list[RowComparison]] = {"all": counted}
        for row in counted:
            groups.setdefault(row.kind, []).append(row)
            label = next(label for least, most, label in _MANY if least <= max(1, round(row.num_requests)) <= most)
            groups.setdefault(label, []).append(row)
        return {
            "leave_out": str(self.leave_out),
            "errors": {name: _errors(rows) for name, rows in groups.items()},
            "calls": _calls(counted),
            "coverage": _coverage(self.rows),
            "left_out": dict(Counter(row.left_out for row in self.rows if row.left_out)),
        }

    def content(self) -> dict[str, Any]:
        """`{"rows": [..], "summary": {..}}`."""
        return {"rows": [row.content() for row in self.rows], "summary": self.summary()}


def frozen(comparison: Comparison) -> dict[str, Any]:
    """Predictions without any measured column, and their SHA-256: proof of what was predicted beforehand."""
    rows = [row.content(measured=False) for row in comparison.rows]
    text = json.dumps(rows, sort_keys=True, separators=(",", ":"))
    return {"predictions": rows, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _errors(rows: Iterable[RowComparison]) -> dict[str, Any]:
    by_name = defaultdict[str, list[Figure]](list)
    for figure in chain.from_iterable(row.figures for row in rows):
        by_name[figure.name].append(figure)
    return {name: _of_figures(figures) for name, figures in by_name.items()}


def _calls(rows: Iterable[RowComparison]) -> dict[str, dict[str, dict[str, int]]]:
    """How many measured gains and losses were called gains, losses or open, by source and in `all`."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        gain = next((figure for figure in row.figures if figure.name == GAIN), None)
        if gain is None:
            continue
        verdict = Gain(ratio=gain.predicted, low=gain.low, high=gain.high).verdict
        for group in ("all", row.cells.get("source", "")):
            measured = found.setdefault(group, {name: dict.fromkeys(Verdict, 0) for name in ("gains", "losses")})
            measured["losses" if gain.measured < 1 else "gains"][verdict] += 1
    return found


def _coverage(rows: Iterable[RowComparison]) -> dict[str, dict[str, int]]:
    """Rows and predicted ones, by class and in `all`."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        for group in ("all", row.kind or row.cells.get("cls", "")):
            counts = found.setdefault(group, {"rows": 0, "predicted": 0})
            counts["rows"] += 1
            counts["predicted"] += not row.left_out
    return found


def _of_figures(figures: Sequence[Figure]) -> dict[str, Any]:
    errors = sorted(abs(figure.error) for figure in figures)
    return {
        "rows": len(errors),
        "median": _short(median(errors)),
        "mean": _short(mean(errors)),
        "nine_of_ten": _short(errors[min(len(errors) - 1, int(0.9 * len(errors)))]),
        "worst": _short(errors[-1]),
        "bias": _short(median(figure.error for figure in figures)),
        "inside_90_percent_interval": _short(sum(figure.is_inside for figure in figures) / len(figures)),
    }


# Columns that tell what was measured beside the figures themselves: also not in a frozen prediction.
_TELLING: Final = ("tok_s_user", "total_tok_s", GAIN, "failed", "output_tok_s_gpu", "tpot_spread", "runs")


def _short(value: float) -> float:
    return float(f"{value:.6g}")
