"""Op tables from measurements of others: a folder of CSV files, one row per measurement.

The columns are those of the extract of AIConfigurator's tables from which the shipped profiles are made: gemm.csv,
all_reduce.csv, attention.csv and elementwise.csv, and of sparse models experts.csv, latent_attention.csv and
linear_attention.csv, each with the rows of several systems, libraries and versions. Only what composition uses is kept:
GEMMs in bf16, fp8 and nvfp4, decoding attention, quantisation, and of each collective the newest version, the median of
its runs, without a host between launches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from swiftspec.costmodel.op_tables import COLUMNS, Columns, OpTables, Source
from swiftspec.costmodel.sparse_selection import release_key, select_experts
from swiftspec.devices import named_device
from swiftspec.files.csv_rows import read_cells
from swiftspec.files.document import Origin
from swiftspec.files.reading import shown

__all__ = ["Measurements", "Record", "from_directory", "read_rows", "select"]

_US = 1e-6
_MOST_DIGITS = 18  # in 64 bits
Record = dict[str, str | int | float]

# Columns of ours, by their names in the files of dense models.
_RENAMED = {"rows": "m", "sequences": "batch", "context": "kv_len", "devices": "gpus", "num_bytes": "message_bytes"}
_TYPES: Mapping[str, type] = {"text": str, "count": int}


def _kinds(table: str, *further: str, renamed: Mapping[str, str]) -> Mapping[str, type]:
    """Columns of a file for one of our tables: the table's own, and after the first one the version and other texts."""
    own = [(renamed.get(name, name), _TYPES[kind]) for name, kind in COLUMNS[table].items() if kind in _TYPES]
    return dict([own[0], *((name, str) for name in ("version", *further)), *own[1:]])


_FILES: Mapping[str, Mapping[str, type]] = {
    "gemm.csv": _kinds("gemm", renamed=_RENAMED),
    "attention.csv": _kinds("attention", "kind", renamed=_RENAMED),
    "all_reduce.csv": _kinds("collective", "mode", "dtype", renamed=_RENAMED),
    "elementwise.csv": {"framework": str, "version": str, "op": str, "m": int, "k": int},
}
_SPARSE_FILES = {  # which a folder may lack
    f"{table}.csv": _kinds(table, renamed={}) for table in ("experts", "latent_attention", "linear_attention")
}
_COLLECTIVE_OPS = ("all_reduce", "all_gather")
_CAPTURED = ("graph", "stream")  # launched without a host in between
_HALF = ("bf16", "fp16")
_WEIGHTS = ("bf16", "fp8", "nvfp4")
_GIVEN_SCALES, _FINDING_SCALES = "fp8_quant_static", "fp8_quant_dynamic_minus_static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Rows of the four files for one device, by file name, with their licence and attribution."""

    device: str
    rows: Mapping[str, Sequence[Record]]
    licence: str
    attribution: str


def from_directory(directory: Path, *, device: str) -> OpTables:
    """Tables of one device from a folder of CSV files.

    ValueError: one sentence naming file and line of a row that cannot be read; or if the folder has no rows of the
    device.
    """
    named_device(device)
    system = device.replace("-", "_")
    present = {name: kinds for name, kinds in _SPARSE_FILES.items() if (directory / name).exists()}
    files = {name: _of_system(directory / name, kinds, system) for name, kinds in ({**_FILES, **present}).items()}
    if not files["gemm.csv"]:
        raise ValueError(f"{directory / 'gemm.csv'}: no row has system {system!r}")
    about = directory / "README.md"
    attribution = f"see {about.name} next to the tables" if about.exists() else "not stated"
    return select(Measurements(device=device, rows=files, licence="as its source states", attribution=attribution))


def _of_system(path: Path, kinds: Mapping[str, type], system: str) -> list[Record]:
    rows = read_rows(path, {"system": str, **kinds, "latency_us": float})
    return [row for row in rows if row["system"] == system]


def read_rows(path: Path, kinds: Mapping[str, type]) -> Iterator[Record]:
    """Typed rows of a CSV file: texts, positive integers, positive numbers.

    kinds: column name to str, int or float; other columns are ignored.

    ValueError: naming file and line, column and value.
    """
    for where, cells in read_cells(path, [*kinds]):
        yield {name: _READ[kind](cells[name], name, where) for name, kind in kinds.items()}


def _integer(text: str, name: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0):
        raise ValueError(f"{where}: {name} is {shown(text)}; expected a positive integer")
    return int(text)


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise ValueError(f"{where}: {name} is {text!r}; expected a number above 0")
    return value


def _text(text: str, name: str, where: str) -> str:
    if not text:
        raise ValueError(f"{where}: {name} is empty")
    return text


_READ: Mapping[type, Callable[[str, str, str], str | int | float]] = {str: _text, int: _integer, float: _number}


def select(measurements: Measurements) -> OpTables:
    """Selection of the measurements that composition uses."""
    rows = measurements.rows
    gemms = [row for row in rows["gemm.csv"] if row["dtype"] in _WEIGHTS]
    decoding = [row for row in rows["attention.csv"] if row["kind"] == "generation"]
    experts = select_experts(rows.get("experts.csv", ()), device=measurements.device)
    kept: dict[str, Sequence[Record]] = {
        "gemm": _newest(gemms, "framework", "dtype"),
        "attention": _newest(decoding, "framework", "kv_dtype"),
        "collective": _newest(_medians(rows["all_reduce.csv"]), "op", "implementation"),
        "quantisation": _newest(_quantising(rows["elementwise.csv"]), "framework"),
        "experts": experts.rows,
        "latent_attention": _newest(rows.get("latent_attention.csv", ()), "framework", "kv_dtype"),
        "linear_attention": _newest(rows.get("linear_attention.csv", ()), "framework", "kind"),
    }
    return OpTables(
        origin=Origin.here(),
        device=measurements.device,
        sources=_sources(kept),
        licence=measurements.licence,
        attribution=measurements.attribution,
        tables={name: _columns(name, rows) for name, rows in kept.items()},
        left_out=experts.left_out,
    )


def _quantising(rows: Sequence[Record]) -> list[Record]:
    """Quantisation with a given scale, and with a computed one: the former plus the measured difference."""
    extra = {_place_of(row): float(row["latency_us"]) for row in rows if row["op"] == _FINDING_SCALES}
    given = [{**row, "scale": "given"} for row in rows if row["op"] == _GIVEN_SCALES and _place_of(row) in extra]
    found = [{**row, "scale": "found", "latency_us": float(row["latency_us"]) + extra[_place_of(row)]} for row in given]
    return given + found


def _place_of(row: Record) -> tuple[str | int | float, ...]:
    return row["framework"], row["version"], row["m"], row["k"]


def _newest(rows: Sequence[Record], *same: str) -> list[Record]:
    """Rows of the newest version among rows that agree in these columns."""
    newest: dict[tuple[object, ...], str] = {}
    for row in rows:
        what = tuple(row[name] for name in same)
        newest[what] = max(newest.get(what, ""), str(row["version"]), key=release_key)
    return [row for row in rows if row["version"] == newest[tuple(row[name] for name in same)]]


def _medians(rows: Sequence[Record]) -> list[Record]:
    """Collectives without a host between launches, the median of their runs."""
    runs: dict[tuple[object, ...], list[Record]] = {}
    for row in rows:
        if row["op"] in _COLLECTIVE_OPS and row["mode"] in _CAPTURED and row["dtype"] in _HALF:
            key = tuple(row[name] for name in ("op", "implementation", "version", "gpus", "message_bytes"))
            runs.setdefault(key, []).append(row)
    return [{**same[0], "latency_us": median(float(row["latency_us"]) for row in same)} for same in runs.values()]


def _columns(table: str, rows: Sequence[Record]) -> Columns:
    columns = {}
    for name, kind in COLUMNS[table].items():
        if kind == "seconds":
            columns[name] = (np.array([row["latency_us"] for row in rows], float) * _US).astype(np.float32)
        else:
            dtype = np.int64 if kind == "count" else np.str_
            own = _RENAMED.get(name, name)
            columns[name] = np.array([row[own] if own in row else row[name] for row in rows], dtype=dtype)
    return columns


def _sources(kept: Mapping[str, Sequence[Record]]) -> tuple[Source, ...]:
    found = {
        (str(row.get("framework") or row["implementation"]), str(row["version"]), table)
        for table, rows in kept.items()
        for row in rows
    }
    return tuple(Source(library=library, version=version, tables=table) for library, version, table in sorted(found))
