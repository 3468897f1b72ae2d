"""Rows of a file of measured loads: what was served, where, under which load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from swiftspec.devices import DeviceSpec, named_device, registered_device
from swiftspec.engines import engine_named
from swiftspec.engines.description import Engine
from swiftspec.files.csv_rows import read_table
from swiftspec.models import known_model
from swiftspec.models.published import registered_name
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.deployment import PlannedModel
from swiftspec.planner.under_load.served import Requests
from swiftspec.policies.effects import Role
from swiftspec.validation.published.cells import UnpredictedError, cell_count, cell_number
from swiftspec.validation.published.client_results import read_results
from swiftspec.validation.published.drafted import Drafting, drafting_of
from swiftspec.validation.published.row_requests import INFERENCEX, stated_requests

__all__ = ["NVFP4", "LoadRow", "read_load_rows", "with_usual_names"]

NVFP4: Final = "nvfp4, for which fp8 stands"  # not priced yet; as many bits as mxfp4
_DEVICES: Final = {"b200-sxm": "b200"}
_FORMATS: Final = {
    "fp16": "bf16",
    "float16": "bf16",
    "bfloat16": "bf16",
    "int8_wo": "int8",
    "int4_wo": "int4",
    "": "bf16",
}
_DEGREES_IN_ID: Final = re.compile(r"_tp(\d+)(?:_\d+)?_ep(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """One measured stage.

    Parameters
    ----------
    cells : mapping of str to str
        The row as it came.
    engine, device, degree, spec, quant
        As of `Deployed`. model: the registered name.
    settings : mapping of str to str
        The engine's limits that the row states.
    drafting : Drafting, optional
        None for plain decoding.
    gaps : tuple of str
        What the row leaves open and a default stands for; each widens the interval.
    """

    cells: Mapping[str, str]
    engine: Engine
    device: DeviceSpec
    degree: int
    model: str
    spec: ModelSpec
    quant: str
    settings: Mapping[str, str]
    gaps: tuple[str, ...] = ()
    drafting: Drafting | None = None
    requests: Requests = field(repr=False)
    warm: bool = False

    @property
    def stored(self) -> str:
        """Format that weights are kept in, where another one stands for their kernels."""
        return "mxfp4" if any(gap == NVFP4 for gap in self.gaps) else ""

    @property
    def is_closed(self) -> bool:
        """Whether clients send the next request when one ends."""
        return self.requests.num_clients is not None

    @property
    def source(self) -> str:
        """Who measured it, as in the constants' sets."""
        if "experiment" in self.cells:
            return "inference-sim"
        if "moe_tp" in self.cells:
            return "AIConfigurator"
        stated = self.cells.get("source", "")
        return "InferenceX" if stated.startswith(INFERENCEX) else stated

    @property
    def kind(self) -> str:
        """Its class in summaries: method, sparse or dense, engine."""
        method = self.cells.get("spec", "").replace("none", "") or "plain"
        shape = "sparse" if self.spec.experts else "dense"
        return f"{method} {shape}, {self.engine.full_name}"

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return int((self.requests.prompt_tokens + self.requests.output_tokens).max())


def read_load_rows(path: Path, *, engine: Engine | None) -> Iterator[tuple[dict[str, str], LoadRow | UnpredictedError]]:
    """Every row's cells, with what they mean or why they mean nothing here; of a CSV file, or results of a client.

    engine: of rows that name none. ValueError, one sentence, if the file cannot be read, or has none of the columns.
    """
    is_csv = path.suffix.lower() != ".json"
    for index, (where, cells) in enumerate(read_table(path) if is_csv else read_results(path)):
        if index == 0:
            _require(cells, where=f"{path}, line 1" if is_csv else where, beside=None if is_csv else path)
        try:
            yield cells, _row(cells, engine)
        except UnpredictedError as reason:
            yield cells, reason
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


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


def _row(stated: Mapping[str, str], engine: Engine | None) -> LoadRow:
    cells = with_usual_names(stated)
    found, gaps = _engine(cells, engine)
    name, spec = _model(cells)
    quant, more = _format(cells, name)
    degree, whole_experts = _degrees(cells)
    if whole_experts and isinstance(spec, SparseSpec) and spec.experts:
        spec = spec.with_whole_experts()
    drafting = _drafting(cells, name, more)
    settings = {word: cells[word] for word in found.words if cells.get(word)}
    return LoadRow(
        cells=stated,
        engine=found,
        device=_device(cells),
        degree=degree,
        model=name,
        spec=spec,
        quant=quant,
        settings=settings,
        drafting=drafting,
        gaps=(*gaps, *more, *filter(None, cells.get("open", "").split("; "))),
        requests=stated_requests(cells),
        warm=(cell_number(cells, "stage") or 0.0) > 0,
    )


def _drafting(cells: Mapping[str, str], model: str, gaps: list[str]) -> Drafting | None:
    method = cells.get("spec", "").strip()
    if method in ("", "none"):
        return None
    stated = {**cells, "cls": method, "head": cells.get("head", "")}
    return drafting_of(stated, PlannedModel.of(Role.TARGET, model), gaps)


def _engine(cells: Mapping[str, str], engine: Engine | None) -> tuple[Engine, list[str]]:
    name, release = cells.get("engine", "").strip(), cells.get("release", "").strip()
    if not name and engine is None:
        raise UnpredictedError("engine is missing")
    if not name:
        assert engine is not None, "checked before"
        return engine, []
    try:
        found = engine_named(name)
    except ValueError as error:
        raise UnpredictedError(str(error)) from None
    with suppress(ValueError):
        return found.at(release), []
    return found, [f"release of {found.full_name}"]


def _degrees(cells: Mapping[str, str]) -> tuple[int, bool]:
    """Devices of the group, and whether they hold whole experts.

    In AIConfigurator's points an id has the degrees where it can; the columns are some products of both.
    """
    degree, whole = cell_count(cells, "devices", default=1), cell_count(cells, "ep", default=1)
    divided = cell_count(cells, "moe_tp", default=1) if "moe_tp" in cells else 0
    found = _DEGREES_IN_ID.search(cells.get("id", ""))
    is_parallel = cell_count(cells, "attention_dp", default=1) > 1
    if divided and degree == 1:
        is_parallel = is_parallel or divided * whole > 1
    elif divided:
        is_parallel = not found and degree < divided * whole
    if is_parallel:
        raise UnpredictedError("attention in data parallel is not planned")
    if found:
        degree, whole = int(found[1]), int(found[2])
    elif divided and degree == divided * whole and degree > whole > 1:
        degree = whole
    return degree, whole > 1


def _device(cells: Mapping[str, str]) -> DeviceSpec:
    stated = cells.get("device", "").strip().lower().replace("_", "-")
    name = _DEVICES.get(stated, stated)
    if not stated:
        raise UnpredictedError("device is missing")
    try:
        return named_device(registered_device(name))
    except ValueError:
        raise UnpredictedError(f"device is {stated!r}, which is not registered") from None


def _model(cells: Mapping[str, str]) -> tuple[str, ModelSpec]:
    stated = cells.get("model", "").strip()
    if not stated:
        raise UnpredictedError("model is missing")
    for spelling in _spellings(stated):
        try:
            name = registered_name(spelling)
        except ValueError:
            continue
        if name is not None:
            return name, known_model(name).spec
    raise UnpredictedError(f"model is {stated!r}, which is not known by name")


def _spellings(stated: str) -> Iterator[str]:
    yield stated
    shorter = stated.rpartition("/")[2]
    for suffix in ("-FP8", "-v0.1", "-0528", "-hf", "-Instruct"):
        shorter = shorter.removesuffix(suffix)
        yield shorter


def _format(cells: Mapping[str, str], model: str) -> tuple[str, list[str]]:
    stated = cells.get("precision", "").strip().lower()
    if model.startswith("gpt-oss"):
        return "mxfp4", []  # its checkpoint's only format
    if stated in ("fp4", "nvfp4"):
        return "fp8", [NVFP4]
    if stated.startswith("fp8"):
        return "fp8", []
    found = _FORMATS.get(stated, stated)
    if found not in ("bf16", "int8", "int4", "mxfp4"):
        raise UnpredictedError(f"weights in {stated!r} are not priced")
    return found, []
