"""Published speeds of plain and drafted decoding against predicted ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from swiftspec.engines.constants import Constants
from swiftspec.engines.description import Engine
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.closed_loop import closed_loop_workload, longest_request
from swiftspec.planner.under_load.deployed import Deployed
from swiftspec.planner.under_load.served import ArrayRun
from swiftspec.planner.under_load.workloads import requests_of
from swiftspec.progress import Progress
from swiftspec.validation.published.cells import UnpredictedError
from swiftspec.validation.published.comparison import Compared, Comparison, Figure, LeaveOut, all_compared
from swiftspec.validation.published.drafted import drafted_chains
from swiftspec.validation.published.load_rows import NVFP4
from swiftspec.validation.published.speed_rows import SpeedRow, read_speed_rows

__all__ = ["compare_speeds", "predict_speed"]

_NORMAL_90, _GAP = 1.645, 0.1  # as in `loads`
_DRAFTED: Final = 0.1  # relative standard deviation that a draft's acceptance and forwards add
_FIGURES: Final = ("tok_s_user", "tpot_ms", "total_tok_s")


def compare_speeds(
    path: Path,
    *,
    engine: Engine | None = None,
    leave_out: LeaveOut = LeaveOut.NONE,
    done: Progress = lambda *_: None,
) -> Comparison:
    """Every row of a file of speeds, predicted; arguments and errors as of `compare_loads`.

    A row's gain is its speed over that of the plain row of its `group`.
    """
    read = list(read_speed_rows(path, engine=engine))
    rows = all_compared(read, lambda cells, row: _compared(cells, row, leave_out), path=path, done=done)
    return Comparison(rows=tuple(_with_gains(rows)), leave_out=leave_out)


def _compared(cells: Mapping[str, str], row: SpeedRow | UnpredictedError, leave_out: LeaveOut) -> Compared:
    if isinstance(row, UnpredictedError):
        return Compared(cells=cells, left_out=str(row))
    left_out = f"model:{row.target.name}" if leave_out is LeaveOut.MODEL else None
    if leave_out is LeaveOut.SOURCE:
        left_out = f"source:{cells.get('source', '')}"
    constants = row.engine.constants(left_out=left_out)
    try:
        run = predict_speed(row, constants)
    except ValueError as reason:
        return Compared(cells=cells, left_out=str(reason))
    spread = math.hypot(constants.spread, *[_GAP] * len(row.gaps), _DRAFTED if row.drafting else 0.0)
    factor = math.exp(_NORMAL_90 * spread)
    tpot_s = float(run.tpot_s.mean())
    predicted = {
        "tok_s_user": 1 / tpot_s,
        "tpot_ms": tpot_s * 1e3,
        "total_tok_s": row.num_requests * row.output_tokens / float(run.e2e_s.mean()),
    }
    figures = [
        Figure(
            name=name,
            measured=_measured(cells, name),
            predicted=predicted[name],
            low=predicted[name] / factor,
            high=predicted[name] * factor,
        )
        for name in _FIGURES
        if cells.get(name, "").strip()
    ]
    limits = f"{row.engine.limits(row.device).step_tokens} tokens a step"
    return Compared(
        cells=cells,
        kind=row.kind,
        num_requests=row.num_requests,
        figures=tuple(figures),
        gaps=row.gaps,
        limits=limits,
    )


def predict_speed(row: SpeedRow, constants: Constants) -> ArrayRun:
    """Serve a row's clients in simulated time. ValueError, a clause, if the model does not fit or is in no table."""
    clients = closed_loop_workload(row.num_requests, row.prompt_tokens, row.output_tokens)
    deployed = Deployed(
        engine=row.engine,
        device=row.device,
        degree=row.degree,
        spec=row.target.spec,
        quant=row.quant,
        stored="mxfp4" if NVFP4 in row.gaps else "",
        constants=constants,
        context=longest_request(clients),
    )
    chains = None if row.drafting is None else drafted_chains(row.drafting, deployed)
    return simulate(requests_of(clients), deployed.under_load(chains))


def _with_gains(rows: list[Compared]) -> list[Compared]:
    """Rows with their gain over the plain row of their group, measured and predicted."""
    plain = {
        row.cells["group"]: figure
        for row in rows
        if row.cells.get("group") and row.kind.startswith("plain")
        for figure in row.figures
        if figure.name == "tok_s_user"
    }
    found = []
    for row in rows:
        over = plain.get(row.cells.get("group", ""))
        own = next((figure for figure in row.figures if figure.name == "tok_s_user"), None)
        if over is None or own is None or row.kind.startswith("plain"):
            found.append(row)
            continue
        predicted = own.predicted / over.predicted
        factor = own.high / own.predicted
        gain = Figure(
            name="speedup",
            measured=own.measured / over.measured,
            predicted=predicted,
            low=predicted / factor,
            high=predicted * factor,
        )
        cells = {**row.cells, "speedup": row.cells.get("speedup") or f"{gain.measured:.4g}"}
        found.append(replace(row, cells=cells, figures=(*row.figures, gain)))
    return found


def _measured(cells: Mapping[str, str], name: str) -> float:
    try:
        value = float(cells[name])
    except ValueError:
        raise ValueError(f"{name} is {cells[name]!r}; expected a number") from None
    if not value > 0:
        raise ValueError(f"{name} is {cells[name]}; expected more than 0")
    return value
