"""Measured loads against predicted ones: latencies of stages by rate or by number of clients, as CSV files have them.

Columns have their usual names, or those that they have in published files; results of clients are read as such rows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from swiftspec.devices import DeviceSpec, named_device, registered_device
from swiftspec.engines import engine_named
from swiftspec.engines.description import Engine
from swiftspec.files.csv_rows import read_table
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.published import registered_name
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.under_load.loads import ArrayRun
from swiftspec.policies.effects import Role
from swiftspec.progress import Progress
from swiftspec.validation.published.client_results import read_results
from swiftspec.validation.published.comparison import Comparison, Figure, LeaveOut, Prediction, compared_rows
from swiftspec.validation.published.drafted import Drafting, drafting_of
from swiftspec.validation.published.rows import (
    INFERENCEX,
    TEMPLATED,
    MeasuredRow,
    ReadRow,
    UnpredictedError,
    cell_above_0,
    cell_count,
    cell_number,
    in_layout,
    of_ranks,
    read_rows,
    stated_requests,
    weight_format,
)

_FIGURE: Final = re.compile(r"(e2e|ttft|tpot)_(mean|p50|p90|p99)_ms")
_DEVICES: Final = {"b200-sxm": "b200", "b300-sxm": "b300"}
_DEGREES_IN_ID: Final = re.compile(r"_tp(\d+)(?:_\d+)?_ep(\d+)")


def compare_loads(
    path: Path,
    *,
    engine: Engine | None = None,
    leave_out: LeaveOut = LeaveOut.NONE,
    done: Progress = lambda *_: None,
) -> Comparison:
    """Every row of a file of loads, predicted.

    path: CSV file; docs/validation.md has its columns.
    engine: of rows that name none.
    leave_out: predict each row with constants that were fitted without its model, or its source.
    done: called after every row.

    ValueError: one sentence, if the file cannot be read.
    """
    read = list(read_load_rows(path, engine=engine, leave_out=leave_out))
    rows = compared_rows(path, read, _figures, leave_out=leave_out, done=done)
    failed = frozenset(index for index, (cells, _) in enumerate(read) if cells.get("failed", "0") not in ("", "0"))
    return Comparison(rows=tuple(rows), leave_out=leave_out, failed=failed)


def _figures(row: MeasuredRow, found: Prediction) -> Sequence[Figure]:
    predicted = latencies_of(found.run)
    return [
        Figure.within(
            name,
            measured=value,
            predicted=predicted[name],
            spread=found.ttft_spread if name.startswith("ttft") else found.spread,
        )
        for name, value in measured_latencies(row.cells).items()
    ]


def latencies_of(run: ArrayRun) -> dict[str, float]:
    """Mean and quantiles of every latency, in ms, by column name."""
    found: dict[str, float] = {}
    for name, values in (("e2e", run.e2e_s), ("ttft", run.ttft_s), ("tpot", run.tpot_s)):
        quantiles = np.percentile(values, (50, 90, 99)).tolist()
        for which, value in zip(("mean", "p50", "p90", "p99"), (float(values.mean()), *quantiles), strict=True):
            found[f"{name}_{which}_ms"] = value * 1e3
    return found


def measured_latencies(cells: Mapping[str, str]) -> dict[str, float]:
    """Measured latencies of a row, in ms, by column name."""
    usual = with_usual_names(cells)
    found = {name: cell_above_0(usual, name) for name in usual if _FIGURE.fullmatch(name)}
    return {name: value for name, value in found.items() if value is not None}


def read_load_rows(path: Path, *, engine: Engine | None, leave_out: LeaveOut = LeaveOut.NONE) -> Iterator[ReadRow]:
    """Every row's cells, with what they mean or why they mean nothing here; of a CSV file, or results of a client.

    engine: of rows that name none. leave_out: of acceptance that stands in where a row states none. ValueError, one
    sentence, if the file cannot be read, or has none of the columns.
    """
    is_csv = path.suffix.lower() != ".json"
    table = list(read_table(path) if is_csv else read_results(path))
    for where, cells in table[:1]:
        _require(cells, where=f"{path}, line 1" if is_csv else where, beside=None if is_csv else path)
    return read_rows(table, lambda cells: _row(cells, engine, leave_out))


# Columns by their usual names, and others that they have in published files.
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("target",),
    "device": ("gpu", "system"),
    "devices": ("gpus", "tp"),
    "engine": ("framework",),
    "release": ("version",),
    "precision": ("dtype", "gemm_quant", "quant"),
    "ep": ("moe_ep",),
    "concurrency": ("conc", "batch"),
    "input_tokens": ("isl",),
    "output_tokens": ("osl",),
    "tpot_mean_ms": ("tpot_ms",),
    "ttft_mean_ms": ("ttft_ms",),
}


def with_usual_names(cells: Mapping[str, str]) -> dict[str, str]:
    """A row's cells, those under another file's names under the usual ones, too."""
    found = dict(cells)
    for name, others in _ALIASES.items():
        if not found.get(name):
            stated = next((cells[other] for other in others if cells.get(other)), None)
            if stated is not None:
                found[name] = stated
    return found


def _require(cells: Mapping[str, str], *, where: str, beside: Path | None) -> None:
    """ValueError without the columns that every row needs. beside: results, which a CSV file can complete."""
    for names in (("model",), ("device",), ("concurrency", "rate_per_s"), ("output_tokens",)):
        known = [*names, *(other for name in names for other in _ALIASES.get(name, ()))]
        if not any(each in cells for each in known):
            hint = f", in {beside.with_suffix('.csv').name} beside it" if beside else ""
            raise ValueError(f"{where}: column {names[0]} is missing; expected it or {', '.join(known[1:])}{hint}")


def _row(stated: Mapping[str, str], engine: Engine | None, leave_out: LeaveOut) -> MeasuredRow:
    cells = with_usual_names(stated)
    found, gaps = _engine(cells, engine)
    target = _target(cells)
    quant = weight_format(cells.get("precision", "").strip().lower() or "bf16", target.name)
    layout = _layout(cells)
    target = in_layout(target, layout, found)
    drafting = _drafting(cells, target, gaps, leave_out)
    method = "plain" if drafting is None else cells["spec"]
    return MeasuredRow(
        cells=stated,
        kind=f"{method} {'sparse' if target.spec.experts else 'dense'}, {found.full_name}",
        source=_source(stated),
        engine=found,
        device=_device(cells),
        degree=layout.num_devices,
        target=target,
        quant=quant,
        settings={word: cells[word] for word in found.words if cells.get(word)},
        drafting=drafting,
        gaps=(*gaps, *filter(None, cells.get("open", "").split("; "))),
        requests=stated_requests(cells),
        warm=(cell_number(cells, "stage") or 0.0) > 0,
    )


def _source(cells: Mapping[str, str]) -> str:
    if "experiment" in cells:
        return "inference-sim"
    if "moe_tp" in cells:
        return "AIConfigurator"
    stated = cells.get("source", "")
    return "InferenceX" if stated.startswith(INFERENCEX) else stated


def _drafting(cells: Mapping[str, str], target: PlannedModel, gaps: list[str], leave_out: LeaveOut) -> Drafting | None:
    method, source = cells.get("spec", "").strip(), cells.get("source", "")
    if method in ("", "none"):
        return None
    dataset = cells.get("dataset") or (TEMPLATED if source.startswith(INFERENCEX) else "")
    stated = {**cells, "cls": method, "head": cells.get("head", ""), "dataset": dataset}
    return drafting_of(stated, target, gaps, without_source=leave_out is LeaveOut.SOURCE)


def _engine(cells: Mapping[str, str], engine: Engine | None) -> tuple[Engine, list[str]]:
    name, release = cells.get("engine", "").strip(), cells.get("release", "").strip()
    if not name:
        if engine is None:
            raise UnpredictedError("engine is missing")
        return engine, []
    try:
        found = engine_named(name)
    except ValueError as error:
        raise UnpredictedError(str(error)) from None
    with suppress(ValueError):
        return found.at(release), []
    return found, [f"release of {found.full_name}"]


def _layout(cells: Mapping[str, str]) -> DeviceLayout:
    """How the devices share the target.

    In AIConfigurator's points an id has the degrees where it can; the columns are some products of both, which do not
    tell how attention in data parallel is divided.
    """
    degree, whole = cell_count(cells, "devices", default=1), cell_count(cells, "ep", default=1)
    ranks = cell_count(cells, "attention_dp", default=1, least=1)
    if "moe_tp" not in cells:
        return of_ranks(degree, ranks, whole_experts=whole > 1)
    divided = cell_count(cells, "moe_tp", default=1)
    found = _DEGREES_IN_ID.search(cells.get("id", ""))
    is_product = not found and degree < divided * whole
    if is_product or (degree == 1 and (ranks > 1 or divided * whole > 1)):
        raise UnpredictedError("its degrees are products, which do not tell how attention in data parallel is divided")
    if found:
        degree, whole = int(found[1]), int(found[2])
    elif degree == divided * whole and degree > whole > 1:
        degree = whole
    return of_ranks(degree, 1, whole_experts=whole > 1)


def _device(cells: Mapping[str, str]) -> DeviceSpec:
    stated = cells.get("device", "").strip().lower().replace("_", "-")
    name = _DEVICES.get(stated, stated)
    if not stated:
        raise UnpredictedError("device is missing")
    try:
        return named_device(registered_device(name))
    except ValueError:
        raise UnpredictedError(f"device is {stated!r}, which is not registered") from None


def _target(cells: Mapping[str, str]) -> PlannedModel:
    stated = cells.get("model", "").strip()
    if not stated:
        raise UnpredictedError("model is missing")
    for spelling in _spellings(stated):
        with suppress(ValueError):
            if (name := registered_name(spelling)) is not None:
                return PlannedModel.of(Role.TARGET, name)
    raise UnpredictedError(f"model is {stated!r}, which is not known by name")


def _spellings(stated: str) -> Iterator[str]:
    yield stated
    shorter = stated.rpartition("/")[2]
    for suffix in ("-FP8", "-v0.1", "-0528", "-hf", "-Instruct"):
        shorter = shorter.removesuffix(suffix)
        yield shorter
