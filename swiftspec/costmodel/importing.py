"""Op tables from measurements of others: a folder of CSV files, one row per measurement.

The columns are those of the extract of AIConfigurator's tables from which the shipped profiles are made: gemm.csv,
all_reduce.csv, attention.csv and elementwise.csv, and of sparse models experts.csv, latent_attention.csv and
linear_attention.csv, each with the rows of several systems, libraries and versions. Only what composition uses is kept:
GEMMs in bf16, fp8 and nvfp4, decoding attention, quantisation, and of each collective the newest version, the median of
its runs, without a host between launches.

Some entries of public tables of experts are ten times as slow as the bytes of their weights explain, mostly for kernels
that were timed untuned. An entry is one kernel on one shape. It is left out, by name, if neither what a further expert
costs nor what many rows cost amounts to a fifth of the memory's bandwidth. Of the others the newest version's fastest
one is kept.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median

import numpy as np

from swiftspec.costmodel.expert_shapes import ExpertShape
from swiftspec.costmodel.op_tables import COLUMNS, OpTables, Source, columns_of
from swiftspec.devices import named_device
from swiftspec.files.csv_rows import read_cells
from swiftspec.files.document import Origin
from swiftspec.files.reading import shown
from swiftspec.models.quantisation import QUANTISATIONS

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


def from_directory(directory: Path, *, device: str) -> OpTables:
    """Tables of one device from a folder of CSV files. ValueError naming a line that cannot be read, or the device."""
    named_device(device)
    system = device.replace("-", "_")
    present = {name: kinds for name, kinds in _SPARSE_FILES.items() if (directory / name).exists()}
    files = {}
    for name, kinds in {**_FILES, **present}.items():
        rows = read_rows(directory / name, {"system": str, **kinds, "latency_us": float})
        files[name] = [row for row in rows if row["system"] == system]
    if not files["gemm.csv"]:
        raise ValueError(f"{directory / 'gemm.csv'}: no row has system {system!r}")
    about = directory / "README.md"
    attribution = f"see {about.name} next to the tables" if about.exists() else "not stated"
    return select(files, device=device, licence="as its source states", attribution=attribution)


def read_rows(path: Path, kinds: Mapping[str, type]) -> Iterator[Record]:
    """Typed rows of a CSV file: texts, positive integers and numbers. ValueError naming file, line, column and value.

    kinds: column name to str, int or float; other columns are ignored.
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


def select(rows: Mapping[str, Sequence[Record]], *, device: str, licence: str, attribution: str) -> OpTables:
    """What composition uses of the rows of a device's files, by file name."""
    gemms = [row for row in rows["gemm.csv"] if row["dtype"] in _WEIGHTS]
    decoding = [row for row in rows["attention.csv"] if row["kind"] == "generation"]
    experts, left_out = select_experts(rows.get("experts.csv", ()), device=device)
    kept: dict[str, Sequence[Record]] = {
        "gemm": _newest(gemms, "framework", "dtype"),
        "attention": _newest(decoding, "framework", "kv_dtype"),
        "collective": _newest(_medians(rows["all_reduce.csv"]), "op", "implementation"),
        "quantisation": _newest(_quantising(rows["elementwise.csv"]), "framework"),
        "experts": experts,
        "latent_attention": _newest(rows.get("latent_attention.csv", ()), "framework", "kv_dtype"),
        "linear_attention": _newest(rows.get("linear_attention.csv", ()), "framework", "kind"),
    }
    return OpTables(
        origin=Origin.here(),
        device=device,
        sources=_sources(kept),
        licence=licence,
        attribution=attribution,
        tables={name: columns_of(name, [_renamed(row) for row in rows]) for name, rows in kept.items()},
        left_out=left_out,
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


def _renamed(row: Record) -> dict[str, object]:
    """A row with our names of its columns."""
    ours = {name: row[theirs] for name, theirs in _RENAMED.items() if theirs in row}
    return {**row, **ours, "latency_s": np.float32(float(row["latency_us"]) * _US)}


def _sources(kept: Mapping[str, Sequence[Record]]) -> tuple[Source, ...]:
    found = {
        (str(row.get("implementation") or row["framework"]), str(row["version"]), table)
        for table, rows in kept.items()
        for row in rows
    }
    return tuple(Source(library=library, version=version, tables=table) for library, version, table in sorted(found))


_LEAST_SHARE = 0.2  # of the peak bandwidth
_DECODING_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Times of one kernel of one library's version on one shape, by rows."""

    framework: str
    version: str
    kernel: str
    shape: ExpertShape
    seconds: Mapping[int, float]

    @property
    def speed(self) -> float:
        """Geometric mean of the seconds of a decoding step's rows."""
        few = [log(seconds) for rows, seconds in self.seconds.items() if rows <= _DECODING_ROWS]
        return exp(sum(few) / len(few))

    def rows(self) -> Iterator[Record]:
        """The rows that it was read from, the fastest of each size."""
        about = {"framework": self.framework, "version": self.version, "kernel": self.kernel, **self.shape._asdict()}
        for rows, seconds in self.seconds.items():
            yield {**about, "rows": rows, "latency_us": seconds * 1e6}

    def share(self, bandwidth_Bps: float) -> float:
        """Share of the bandwidth at which it reads a further expert, or the experts of many rows if that is more."""
        shape = self.shape
        expert_bytes = 3 * shape.hidden * shape.size / shape.parts * QUANTISATIONS[shape.dtype].bytes_per_weight
        few = sorted(rows for rows in self.seconds if rows <= _DECODING_ROWS)
        seconds = np.array([self.seconds[rows] for rows in few])
        touched = np.array([shape.touched(rows) for rows in few])
        read_bytes = touched / shape.holders * expert_bytes
        # Least squares of relative errors of t0 + bytes / speed.
        sides = np.stack([np.ones_like(seconds), read_bytes], axis=1) / seconds[:, None]
        slope = float(np.linalg.lstsq(sides, np.ones_like(seconds), rcond=None)[0][1])
        growing = 1 / slope / bandwidth_Bps if slope > 0 else 0.0
        return max(min(growing, 1.0), float(read_bytes[-1] / seconds[-1]) / bandwidth_Bps)


def select_experts(rows: Iterable[Record], *, device: str) -> tuple[list[Record], tuple[str, ...]]:
    """Rows of the fastest plausible kernel of every library and shape; a line for each kernel that was left out."""
    bandwidth_Bps = named_device(device).memory_bandwidth_Bps
    kept: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    implausible: dict[str, list[float]] = defaultdict(list)
    for entry in _entries(rows):
        share = entry.share(bandwidth_Bps)
        if share < _LEAST_SHARE:
            implausible[f"{entry.framework} {entry.version} {entry.kernel}, {entry.shape.dtype}"].append(share)
        else:
            kept[entry.framework, *entry.shape].append(entry)
    chosen = [
        min((entry for entry in entries if entry.version == newest), key=lambda entry: entry.speed)
        for entries in kept.values()
        for newest in [max((entry.version for entry in entries), key=release_key)]
    ]
    left_out = tuple(
        f"{kernel}: {len(shares)} shapes at {min(shares):.0%} to {max(shares):.0%} of the bandwidth"
        for kernel, shares in sorted(implausible.items())
    )
    return [row for entry in chosen for row in entry.rows()], left_out


def _entries(rows: Iterable[Record]) -> Iterable[Entry]:
    groups: dict[tuple[str | int | float, ...], dict[int, float]] = defaultdict(dict)
    for row in rows:
        key = (row["framework"], row["version"], row["kernel"], *(row[name] for name in ExpertShape._fields))
        known = groups[key]
        count, seconds = int(row["rows"]), float(row["latency_us"]) * 1e-6
        known[count] = min(known.get(count, seconds), seconds)
    for (framework, version, kernel, *shape), times in groups.items():
        if sum(count <= _DECODING_ROWS for count in times) >= 4:
            yield Entry(
                framework=str(framework),
                version=str(version),
                kernel=str(kernel),
                shape=ExpertShape(*shape),  # type: ignore[arg-type]  # the reader checks each column's type
                seconds=dict(sorted(times.items())),
            )


def release_key(version: str) -> list[int]:
    """A sort key: 1.3.0rc20 after 1.3.0rc10, 0.24.0 after 0.19.0."""
    return [int(part) for part in "".join(char if char.isdigit() else " " for char in version).split()]
