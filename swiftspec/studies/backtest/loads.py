"""Loads of engines as others measured them, beside what `validate --loads` predicts for the same rows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from swiftspec.costmodel.constants import FITTED
from swiftspec.engines import engine_named
from swiftspec.engines.constants import fitted_sets
from swiftspec.studies.backtest.rows import FIRST_TOKEN, LOAD_TIME, SPARSE_TPOT, TPOT, Constant, Row, Section
from swiftspec.validation.published import DATA
from swiftspec.validation.published.comparison import LeaveOut, RowComparison
from swiftspec.validation.published.loads import compare_loads, read_load_rows, with_usual_names
from swiftspec.validation.published.rows import MeasuredRow, UnpredictedError

_NVIDIA: Final = "NVIDIA, in aiconfigurator-core 0.12.0"
_QUANTITIES: Final[Mapping[str, str]] = {"tpot_mean_ms": TPOT, "e2e_mean_ms": LOAD_TIME, "ttft_p50_ms": FIRST_TOKEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLoads:
    """A file of loads, and the title of its section.

    publisher: first words of a row's source. figures: columns that become rows; TTFT of a closed loop is none, since it
    is mostly that of requests that start at once. engine: `NAME@RELEASE` of rows that name none.
    """

    title: str
    path: Path
    publisher: str
    figures: tuple[str, ...] = ("tpot_mean_ms",)
    engine: str | None = None


POINTS: Final = PublishedLoads(title="Serving points", path=DATA / "serving.csv", publisher=_NVIDIA)
SPARSE_POINTS: Final = PublishedLoads(title="Sparse targets", path=DATA / "serving_sparse.csv", publisher=_NVIDIA)
STAGES: Final = PublishedLoads(
    title="Loads",
    path=DATA / "vllm_serving.csv",
    publisher="inference-sim",
    figures=("e2e_mean_ms", "ttft_p50_ms"),
    engine="vllm@0.15.1",
)
INFERENCEX: Final = PublishedLoads(
    title="Loads of InferenceX", path=DATA / "inferencex_serving.csv", publisher="InferenceX"
)


def load_section(loads: PublishedLoads) -> Section:
    """Rows of a file: `error` with constants of all loads, `error_leave_one_out` with those without the row's model.

    ValueError, one sentence, if the file cannot be read.
    """
    engine = None if loads.engine is None else engine_named(loads.engine)
    read = read_load_rows(loads.path, engine=engine)
    fitted, left_out = (
        compare_loads(loads.path, engine=engine, leave_out=leave_out) for leave_out in (LeaveOut.NONE, LeaveOut.MODEL)
    )
    rows: dict[Row, Row] = {}
    skipped: Counter[str] = Counter()
    for index, ((_, row), known, unknown) in enumerate(zip(read, fitted.rows, left_out.rows, strict=True)):
        reason = "requests failed" if index in fitted.failed else known.left_out or _drafted(known.cells)
        if reason or isinstance(row, UnpredictedError):
            skipped[reason] += 1
            continue
        for found in _rows(loads, row, known, unknown):
            # Another id, and all else the same: the same measurement.
            if rows.setdefault(replace(found, source=""), found) is not found:
                skipped["they repeat the measurement of another row"] += 1
    return Section(title=loads.title, rows=tuple(rows.values()), skipped=dict(skipped))


def _drafted(cells: Mapping[str, str]) -> str:
    is_plain = cells.get("spec", "") in ("", "none")
    return "" if is_plain else "their acceptance is not stated, so that drafting is not predicted"


def _rows(loads: PublishedLoads, row: MeasuredRow, known: RowComparison, unknown: RowComparison) -> Iterator[Row]:
    errors = {figure.name: figure.error for figure in unknown.figures}
    for figure in known.figures:
        if figure.name in loads.figures:
            quantity = _QUANTITIES[figure.name]
            yield Row(
                name=f"{row.model} {row.quant}, {row.engine.name}, {row.degree} x {row.device.name}, {_load(row)}",
                quantity=SPARSE_TPOT if quantity == TPOT and row.target.spec.experts else quantity,
                published=figure.measured,
                predicted=figure.predicted,
                error_leave_one_out=errors[figure.name],
                source=f"{loads.publisher}, {row.cells.get('id') or row.cells['experiment']}",
            )


def _load(row: MeasuredRow) -> str:
    cells = with_usual_names(row.cells)
    if row.is_closed:
        return f"batch {row.requests.num_clients}, {cells['input_tokens']}/{cells['output_tokens']}"
    return f"{cells['workload']}, {cells['rate_per_s']} requests/s"


def load_constants() -> tuple[Constant, ...]:
    """Constants of composed kernels, then those of every engine that were fitted to loads."""
    of_engines = [
        Constant(
            name=f"{name}, {' '.join(filter(None, (one.engine, '.'.join(map(str, one.since)))))}",
            value=getattr(one.constants, name),
            unit="s",
            fitted_on=one.fitted_on,
        )
        for sets in fitted_sets().values()
        for one in sets
        for name in asdict(one.constants)
        if name not in one.assumed
    ]
    return (*(Constant(name=name, **fact) for name, fact in FITTED.items()), *of_engines)
