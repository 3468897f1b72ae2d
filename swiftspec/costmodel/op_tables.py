"""OpTables: measured latencies of single operations on one kind of device. Published by others, or one's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from swiftspec.files.archives import archive_bytes, read_archive
from swiftspec.files.document import Document, Facts, Origin
from swiftspec.files.reading import parse_json, shown
from swiftspec.files.writing import write_output

Columns = Mapping[str, np.ndarray]

_TEXT, _COUNT, _SECONDS = "text", "count", "seconds"


def _kinds(texts: str, counts: str) -> Mapping[str, str]:
    """Kinds of a table's columns, whose last one is the latency."""
    return {**dict.fromkeys(texts.split(), _TEXT), **dict.fromkeys(counts.split(), _COUNT), "latency_s": _SECONDS}


# Columns of every table; a row per measurement. Sizes are those of one device's shard.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    # y[rows, n] = x[rows, k] W[n, k]^T, quantising x included
    "gemm": _kinds("framework dtype", "rows n k"),
    # one new token in each of `sequences` over a cache of `context` tokens, the new one included
    "attention": _kinds("framework kv_dtype", "head_dim sequences context heads kv_heads"),
    # all_reduce: the tensor that every device holds; all_gather: the gathered whole
    "collective": _kinds("op implementation", "devices num_bytes"),
    # x[rows, k] to fp8 with a given or a computed scale, as the library's fp8 GEMMs include it
    "quantisation": _kinds("framework scale", "rows k"),
    # routed experts of one layer on one device, `active` of them for each row: `size` wide before they are divided,
    # into `parts` of their width or over `holders` of whole ones
    "experts": _kinds("framework kernel dtype", "rows hidden size active experts parts holders"),
    # multi-head latent attention of one new token in each of `sequences`, without its projections
    "latent_attention": _kinds("framework kv_dtype", "sequences context heads"),
    # convolution and recurrence of `rows` tokens in each of `sequences`
    "linear_attention": _kinds("framework kind", "sequences rows key_heads value_heads"),
}
_SPARSE = ("experts", "latent_attention", "linear_attention")  # which files written before them lack
_KINDS = {_TEXT: "U", _COUNT: "iu", _SECONDS: "f"}
_DTYPES: Mapping[str, Any] = {_TEXT: np.str_, _COUNT: np.int64, _SECONDS: None}  # seconds are as precise as given
_NAMES = {"about", *(f"{table}.{name}" for table, kinds in COLUMNS.items() for name in kinds)}


class Source(Facts):
    """Source of measurements: a library, its version, and the tables from it."""

    library: str
    version: str
    tables: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTables:
    """Tables of one kind of device."""

    origin: Origin
    device: str  # a registered device name
    sources: tuple[Source, ...]
    # licence, attribution: of the measurements
    licence: str
    attribution: str
    # Columns of every table in `COLUMNS`, all of one length. A table may be empty; only those of sparse layers may be
    # missing, and are then empty.
    tables: Mapping[str, Columns]
    left_out: tuple[str, ...] = ()  # measurements that were implausible, a line for each kernel

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", {name: columns_of(name, ()) for name in _SPARSE} | dict(self.tables))
        for name, kinds in COLUMNS.items():
            _check(name, self.tables.get(name, {}), kinds)
        if not len(self.tables["gemm"]["rows"]):
            raise ValueError("gemm is empty; a forward cannot be composed without it")

    @property
    def num_measurements(self) -> int:
        return sum(len(columns["latency_s"]) for columns in self.tables.values())

    def rows(self, table: str, **wanted: str) -> dict[str, np.ndarray]:
        """The columns of a table, restricted to rows whose text columns have the wanted values."""
        columns = self.tables[table]
        chosen = np.ones(len(columns["latency_s"]), bool)
        for name, value in wanted.items():
            chosen &= columns[name] == value
        return {name: column[chosen] for name, column in columns.items()}

    def values(self, table: str, column: str) -> list[str]:
        """Values of a text column, sorted."""
        return [str(value) for value in np.unique(self.tables[table][column])]

    def save(self, path: Path) -> None:
        """An .npz archive, written whole or not at all."""
        about = _About(**{name: getattr(self, name) for name in _About.model_fields})
        arrays: dict[str, Any] = {
            f"{table}.{name}": column for table, columns in self.tables.items() for name, column in columns.items()
        }
        write_output(path, archive_bytes({"about": np.array(about.to_json())} | arrays))

    @classmethod
    def load(cls, path: Path) -> "OpTables":
        """ValueError, one sentence naming file, field and value, for anything that is not such a file."""
        arrays = read_archive(path, kind="a file of op tables")
        if unknown := arrays.keys() - _NAMES:
            raise ValueError(f"{path}: {shown(min(unknown))} is an array that a file of op tables does not have")
        try:
            content = parse_json(str(arrays["about"]))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: about is missing or not a JSON document") from error
        about = _About.parse(content, source=str(path))
        try:
            return cls(
                **{name: getattr(about, name) for name in _About.model_fields},
                tables={
                    table: {name: arrays[array] for name in kinds if (array := f"{table}.{name}") in arrays}
                    for table, kinds in COLUMNS.items()
                    if table not in _SPARSE or any(name.startswith(f"{table}.") for name in arrays)
                },
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


class _About(Document):
    """Contents of the file other than its arrays."""

    schema_name: ClassVar[str] = "swiftspec.op-tables"
    schema_version: ClassVar[int] = 1

    device: str
    sources: tuple[Source, ...]
    licence: str
    attribution: str
    left_out: tuple[str, ...] = ()


def columns_of(table: str, rows: Sequence[Mapping[str, object]]) -> Columns:
    """Columns of a table from rows that have a value for each."""
    return {name: np.array([row[name] for row in rows], _DTYPES[kind]) for name, kind in COLUMNS[table].items()}


def _check(table: str, columns: Columns, kinds: Mapping[str, str]) -> None:
    if missing := [name for name in kinds if name not in columns]:
        raise ValueError(f"{table}.{missing[0]} is missing")
    for name, kind in kinds.items():
        column, length = columns[name], len(columns["latency_s"])
        if column.dtype.kind not in _KINDS[kind] or column.shape != (length,):
            raise ValueError(
                f"{table}.{name} is {column.dtype} of shape {column.shape}; expected {kind} of shape ({length},)"
            )
        if kind == _COUNT and (column < 1).any():
            raise ValueError(f"{table}.{name} holds {column.min()}; expected 1 or more")
        if kind == _SECONDS and not (np.isfinite(column).all() and (column > 0).all()):
            worst = column[~(np.isfinite(column) & (column > 0))][0]
            raise ValueError(f"{table}.{name} holds {worst}; expected seconds above 0")
