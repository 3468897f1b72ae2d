"""Published speeds of plain and drafted decoding against predicted ones, as a CSV file has them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from swiftspec.devices import DeviceSpec, registered_device
from swiftspec.devices.accelerators import DEVICES
from swiftspec.engines import engine_named
from swiftspec.engines.description import Engine
from swiftspec.files.csv_rows import read_table
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.under_load.loads import ArrayRun
from swiftspec.policies.effects import Role
from swiftspec.progress import Progress
from swiftspec.validation.published.comparison import (
    BUILD,
    GAIN,
    Comparison,
    Figure,
    LeaveOut,
    Prediction,
    RowComparison,
    compared_rows,
)
from swiftspec.validation.published.drafted import drafting_of
from swiftspec.validation.published.rows import (
    MeasuredRow,
    ReadRow,
    UnpredictedError,
    cell_above_0,
    cell_count,
    in_layout,
    of_ranks,
    read_rows,
    text_requests,
    weight_format,
)

# Relative standard deviations: what a draft's forwards and acceptance as stated add, and what a figure that its source
# publishes beside others leaves unsaid (flags, clocks, texts). Both are taken so; docs/log has what intervals hold.
_DRAFTED: Final = 0.1
_UNSAID: Final = 0.15
_PROMPT, _OUTPUT = 512, 256
_ROUNDED: Final = 0.01


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
    read = list(read_speed_rows(path, engine=engine, leave_out=leave_out))
    rows = compared_rows(path, read, _figures, leave_out=leave_out, done=done)
    rows = [replace(row, overloaded=None) for row in rows]  # clients wait for answers, so no queue grows
    return Comparison(rows=tuple(_with_gains(rows)), leave_out=leave_out)


def _figures(row: MeasuredRow, found: Prediction) -> Sequence[Figure]:
    predicted = {
        "tok_s_user": user_speed(row, found.run),
        "tpot_ms": float(found.run.tpot_s.mean()) * 1e3,
        "total_tok_s": found.run.tok_s,
    }
    drafted = (_DRAFTED, row.drafting.spread) if row.drafting else ()
    spread = math.hypot(found.spread, _UNSAID, *drafted)
    return [
        Figure.within(name, measured=measured, predicted=value, spread=spread)
        for name, value in predicted.items()
        if (measured := cell_above_0(row.cells, name)) is not None
    ]


def user_speed(row: MeasuredRow, run: ArrayRun) -> float:
    """Tokens per second of a user, as the row's source counts them."""
    clients = row.requests.num_clients
    assert clients is not None, "its load is a closed loop"
    return run.tok_s / clients if _is_share(row.cells, clients) else 1 / float(run.tpot_s.mean())


def _is_share(cells: Mapping[str, str], clients: int) -> bool:
    """Whether a user's speed is nothing but a client's share of the whole run's, its ends and prompts included."""
    own, total = cell_above_0(cells, "tok_s_user"), cell_above_0(cells, "total_tok_s")
    if own is None or total is None or cell_above_0(cells, "tpot_ms") is not None:
        return False
    return math.isclose(own * clients, total, rel_tol=_ROUNDED)


def _with_gains(rows: list[RowComparison]) -> list[RowComparison]:
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
        gain = Figure.within(
            GAIN,
            measured=own.measured / over.measured,
            predicted=own.predicted / over.predicted,
            spread=row.gain_spread,
        )
        cells = {**row.cells, GAIN: row.cells.get(GAIN) or f"{gain.measured:.4g}"}
        found.append(replace(row, cells=cells, figures=(*row.figures, gain)))
    return found


def read_speed_rows(path: Path, *, engine: Engine | None, leave_out: LeaveOut = LeaveOut.NONE) -> Iterator[ReadRow]:
    """Every row's cells, with what they mean or why they mean nothing here.

    engine: of rows that name none. leave_out: of acceptance that stands in where a row states none. ValueError, one
    sentence, if the file cannot be read, or has none of the columns.
    """
    table = list(read_table(path))
    for name in ("target", "gpu", "conc"):
        if table and name not in table[0][1]:
            raise ValueError(f"{path}, line 1: column {name} is missing; expected target, gpu and conc")
    return read_rows(table, lambda cells: _row(cells, engine, leave_out))


def _row(cells: Mapping[str, str], engine: Engine | None, leave_out: LeaveOut) -> MeasuredRow:
    gaps: list[str] = []
    clients = cell_count(cells, "conc", least=1)
    target = _target(cells, gaps)
    served_by, device = _engine(cells, engine, gaps), _device(cells, gaps)
    degree = _count(cells, "gpus", 1, "number of devices", gaps)
    target = in_layout(target, _layout(cells.get("par", ""), degree, gaps), served_by)
    quant = _format(cells, target, gaps)
    prompt_tokens = _count(cells, "isl", _PROMPT, "prompt length", gaps)
    output_tokens = _count(cells, "osl", _OUTPUT, "output length", gaps)
    known = len(gaps)
    drafting = drafting_of(cells, target, gaps, without_source=leave_out is LeaveOut.SOURCE)
    return MeasuredRow(
        cells=cells,
        kind=cells.get("cls") or ("drafted" if drafting else "plain"),
        source=cells.get("source", ""),
        engine=served_by,
        device=device,
        degree=degree,
        target=target,
        quant=quant,
        drafting=drafting,
        gaps=tuple(gaps),
        num_draft_gaps=len(gaps) - known,
        requests=text_requests(
            cells.get("dataset", ""), clients=clients, prompt_tokens=prompt_tokens, output_tokens=output_tokens
        ),
    )


def _layout(stated: str, devices: int, gaps: list[str]) -> DeviceLayout:
    """From `TP8`, `TP8+EP8` or `DP8+EP8`; ranks without a number are one for each device, which is a gap."""
    ranks = re.search(r"\bDP(\d*)", stated)
    if ranks is not None and not ranks[1]:
        gaps.append("layout")
    number = 1 if ranks is None else int(ranks[1] or devices)
    return of_ranks(devices, number, whole_experts="EP" in stated)


def _count(cells: Mapping[str, str], column: str, usual: int, name: str, gaps: list[str]) -> int:
    """A number of a column; the usual one, which is a gap by its name, for an empty cell."""
    if not cells.get(column, "").strip():
        gaps.append(name)
    return cell_count(cells, column, default=usual, least=1)


def _engine(cells: Mapping[str, str], engine: Engine | None, gaps: list[str]) -> Engine:
    stated = cells.get("engine", "").strip()
    if not stated:
        if engine is None:
            raise UnpredictedError("engine is missing")
        return engine
    try:
        found = engine_named(re.split(r"[\s@]", stated)[0])
    except ValueError:
        raise UnpredictedError(f"engine is {stated!r}, which is not described") from None
    # A date, a nightly build or a development version names no release.
    release = re.search(r"[\s@]v?(\d+\.\d+(?:\.\d+)*)(?![\d.-]*dev)(?=[^\d.-]|$)", stated)
    if release is not None and "dev" not in stated:
        return found.at(release[1])
    between = re.search(r"nightly|dev|main", stated)
    gaps.append(f"{BUILD if between else 'release'} of {found.full_name}")
    day = re.fullmatch(r"(\d{4})-?(\d{2})-?(\d{2})?", cells.get("date", "").strip())
    return found.as_of("-".join(filter(None, day.groups()))) if day else found


def _device(cells: Mapping[str, str], gaps: list[str]) -> DeviceSpec:
    stated, stand_in = cells.get("gpu", "").strip(), cells.get("standin", "").lower()
    with suppress(ValueError):
        return DEVICES[registered_device(stated)]
    for name in DEVICES:
        if name in stand_in:
            gaps.append(f"device, for which {name} stands")
            memory = re.search(r"(\d+) GB", stated)
            return replace(DEVICES[name], memory_bytes=int(memory[1]) << 30) if memory else DEVICES[name]
    raise UnpredictedError(f"device is {stated!r}, which is not registered" if stated else "device is missing")


def _target(cells: Mapping[str, str], gaps: list[str]) -> PlannedModel:
    stated = cells.get("target", "").strip()
    if not stated:
        raise UnpredictedError("target is missing")
    with suppress(ValueError):
        return PlannedModel.of(Role.TARGET, stated)
    stand_in = cells.get("standin", "")
    other = re.match(r"(\S+) for (\S+)", stand_in)
    spellings = [stand_in.partition(" ")[0]]
    if other:
        spellings.insert(0, re.sub(re.escape(other[2]), other[1], stated, flags=re.IGNORECASE))
    for spelling in filter(None, spellings):
        with suppress(ValueError):
            found = PlannedModel.of(Role.TARGET, spelling.lower())
            gaps.append(f"target, for which {found.name} stands")
            return found
    raise UnpredictedError(f"target is {stated!r}, which is not known by name")


def _format(cells: Mapping[str, str], target: PlannedModel, gaps: list[str]) -> str:
    stated = cells.get("quant", "").strip().lower()
    if not target.name.startswith("gpt-oss") and (not stated or stated.endswith("?")):
        gaps.append("weight format")
    return weight_format(stated.rstrip("?") or "bf16", target.name)
