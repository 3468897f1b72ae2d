"""Measured loads against predicted ones: latencies of stages by rate or by number of clients."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.engines.constants import Constants
from swiftspec.engines.description import Engine
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.deployed import Deployed
from swiftspec.planner.under_load.served import ArrayRun
from swiftspec.progress import Progress
from swiftspec.validation.published.cells import UnpredictedError
from swiftspec.validation.published.comparison import Compared, Comparison, Figure, LeaveOut, all_compared
from swiftspec.validation.published.drafted import drafted_chains
from swiftspec.validation.published.load_rows import LoadRow, read_load_rows, with_usual_names

__all__ = ["PredictedLoad", "compare_loads", "measured_figures", "predict_load"]

_FIGURE: Final = re.compile(r"(e2e|ttft|tpot)_(mean|p50|p90|p99)_ms")
_FALLS_BEHIND: Final = 0.01  # seconds of wait for a second of arrivals
_NORMAL_90: Final = 1.645
_GAP: Final = 0.1  # relative standard deviation that each open condition adds


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLoad:
    """A load's prediction.

    figures: by the measured columns' names, in ms. spread, ttft_spread: relative standard deviations, the latter until
    the first token. overloaded: whether the queue grows without end.
    """

    figures: Mapping[str, float]
    spread: float
    ttft_spread: float
    overloaded: bool
    hit_rate: float
    num_preemptions: int
    mean_running: float
    limits: str

    def interval(self, name: str) -> tuple[float, float]:
        """The 90 % interval of a figure."""
        factor = math.exp(_NORMAL_90 * (self.ttft_spread if name.startswith("ttft") else self.spread))
        return self.figures[name] / factor, self.figures[name] * factor


def compare_loads(
    path: Path,
    *,
    engine: Engine | None = None,
    leave_out: LeaveOut = LeaveOut.NONE,
    done: Progress = lambda *_: None,
) -> Comparison:
    """Every row of a file of loads, predicted.

    Parameters
    ----------
    path : Path
        CSV file; docs/validation.md has its columns.
    engine : Engine, optional
        Of rows that name none.
    leave_out : LeaveOut
        Predict each row with constants that were fitted without its model, or its source.
    done : Progress
        Called after every row.

    Raises
    ------
    ValueError
        One sentence, if the file cannot be read.
    """
    read = list(read_load_rows(path, engine=engine))
    rows = all_compared(read, lambda cells, row: _compared(cells, row, leave_out), path=path, done=done)
    failed = frozenset(index for index, (cells, _) in enumerate(read) if cells.get("failed", "0") not in ("", "0"))
    return Comparison(rows=tuple(rows), leave_out=leave_out, failed=failed)


def _compared(cells: Mapping[str, str], row: LoadRow | UnpredictedError, leave_out: LeaveOut) -> Compared:
    if isinstance(row, UnpredictedError):
        return Compared(cells=cells, left_out=str(row))
    left_out = {LeaveOut.MODEL: f"model:{row.model}", LeaveOut.SOURCE: f"source:{row.source}"}.get(leave_out)
    measured = measured_figures(cells)
    try:
        found = predict_load(row, constants=row.engine.constants(left_out=left_out))
    except ValueError as reason:
        return Compared(cells=cells, left_out=str(reason))
    figures = []
    for name, value in measured.items():
        low, high = found.interval(name)
        figures.append(Figure(name=name, measured=value, predicted=found.figures[name], low=low, high=high))
    return Compared(
        cells=cells,
        kind=row.kind,
        num_requests=row.requests.num_clients or found.mean_running,
        figures=tuple(figures),
        gaps=row.gaps,
        overloaded=found.overloaded,
        limits=found.limits,
    )


def predict_load(row: LoadRow, *, constants: Constants | None = None) -> PredictedLoad:
    """Serve a row's requests in simulated time. ValueError, a clause, if the model does not fit or is in no table."""
    deployed = Deployed(
        engine=row.engine,
        device=row.device,
        degree=row.degree,
        spec=row.spec,
        quant=row.quant,
        stored=row.stored,
        settings=row.settings,
        constants=constants,
        context=row.longest,
    )
    chains = None if row.drafting is None else drafted_chains(row.drafting, deployed)
    engine = deployed.under_load(chains)
    if row.warm:
        for segments in row.requests.segments:
            engine.prefixes.hold(segments)
            engine.prefixes.release(segments)
    run = simulate(row.requests, engine)
    limits, added, gaps = deployed.limits, deployed.added, [_GAP] * len(row.gaps)
    return PredictedLoad(
        figures=figures_of(run),
        spread=math.hypot(added.spread, *gaps),
        ttft_spread=math.hypot(added.ttft_spread, *gaps),
        overloaded=not row.is_closed and run.falls_behind > _FALLS_BEHIND,
        hit_rate=run.hit_rate,
        num_preemptions=run.num_preemptions,
        mean_running=run.mean_running,
        limits=f"{limits.step_tokens} tokens and {limits.requests} requests a step",
    )


def figures_of(run: ArrayRun) -> dict[str, float]:
    """Mean and quantiles of every latency, in ms, by column name."""
    found: dict[str, float] = {}
    for name, values in (("e2e", run.e2e_s), ("ttft", run.ttft_s), ("tpot", run.tpot_s)):
        found |= {f"{name}_{which}_ms": value * 1e3 for which, value in _summary(values).items()}
    return found


def _summary(values: npt.NDArray[np.float64]) -> dict[str, float]:
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}


def measured_figures(cells: Mapping[str, str]) -> dict[str, float]:
    """Measured latencies of a row, in ms, by column name."""
    found: dict[str, float] = {}
    for name, text in with_usual_names(cells).items():
        if _FIGURE.fullmatch(name) and text.strip():
            try:
                found[name] = float(text)
            except ValueError:
                raise ValueError(f"{name} is {text!r}; expected a number") from None
            if not 0 < found[name] < math.inf:
                raise ValueError(f"{name} is {text}; expected more than 0")
    return found
