"""A row of a file of measurements: its numbers, what was served where, and the load that it was under."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from swiftspec.devices import DeviceSpec
from swiftspec.engines.constants import Constants
from swiftspec.engines.description import Engine
from swiftspec.models import QUANTISATIONS
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.composed_engine import ComposedEngine
from swiftspec.planner.under_load.loads import ArrayRun, Requests
from swiftspec.planner.under_load.serving_engine import ServingEngine
from swiftspec.validation.published.drafted import Drafting

_MOST: Final = 10_000_000  # of anything that is counted
_FORMATS: Final = {
    "fp16": "bf16",
    "float16": "bf16",
    "bfloat16": "bf16",
    "int8_wo": "int8",
    "int4_wo": "int4",
    "fp4": "nvfp4",
}


class UnpredictedError(ValueError):
    """Why a row cannot be predicted, a clause."""


def cell_count(cells: Mapping[str, str], name: str, *, default: int | None = None, least: int = 0) -> int:
    """A whole number of a column. UnpredictedError for an empty cell without a default."""
    found = cell_number(cells, name)
    if found is None:
        if default is None:
            raise UnpredictedError(f"{name} is missing")
        return default
    if found != int(found) or not least <= found <= _MOST:
        raise ValueError(f"{name} is {found:g}; expected a whole number, {least} to {_MOST}")
    return int(found)


def cell_number(cells: Mapping[str, str], name: str) -> float | None:
    """A finite number of a column; None for an empty cell. ValueError for a cell that is none."""
    text = cells.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text}; expected a finite number")
    return value


def cell_above_0(cells: Mapping[str, str], name: str) -> float | None:
    """A measured number; None for an empty cell. ValueError for one that is not above 0."""
    value = cell_number(cells, name)
    if value is not None and value <= 0:
        raise ValueError(f"{name} is {cells[name]}; expected more than 0")
    return value


def in_layout(target: PlannedModel, layout: DeviceLayout, engine: Engine) -> PlannedModel:
    """A row's target in its layout. UnpredictedError if that is none of its own, or none of the engine's."""
    if target.spec.experts is None:
        if layout.dp > 1:
            raise UnpredictedError(
                f"{target.name} has no experts, so that ranks of attention in data parallel are replicas"
            )
        return target
    if (objection := engine.objection(layout)) is not None:
        raise UnpredictedError(f"layout is {layout}; {objection}")
    return target.in_layout(layout)


def of_ranks(devices: int, ranks: int, *, whole_experts: bool) -> DeviceLayout:
    """The layout of so many devices in ranks of attention in data parallel. UnpredictedError if these do not divide."""
    if devices % ranks:
        raise UnpredictedError(f"its {ranks} ranks of attention in data parallel do not divide its devices, {devices}")
    return DeviceLayout(dp=ranks, tp=devices // ranks, ep=devices if whole_experts else 1)


def weight_format(stated: str, target: str) -> str:
    """Format of a target's weights. UnpredictedError if it is not priced."""
    if target.startswith("gpt-oss"):
        return "mxfp4"  # its checkpoint's only format
    if stated.startswith("fp8"):
        return "fp8"
    found = _FORMATS.get(stated, stated)
    if found not in QUANTISATIONS:
        raise UnpredictedError(f"weights in {stated!r} are not priced")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured load.

    cells: the row as it came.
    kind: its class in summaries.
    source: who measured it, as in the constants' sets.
    engine, device, degree, target, quant, settings: as of `ServingEngine`.
    drafting: None for plain decoding.
    gaps: what the row leaves open and a default stands for; each widens the interval.
    num_draft_gaps: how many of them are of the draft, so that they widen the gain's interval, too.
    warm: whether the prompts were sent before.
    """

    cells: Mapping[str, str]
    kind: str
    source: str
    engine: Engine
    device: DeviceSpec
    degree: int
    target: PlannedModel
    quant: str
    settings: Mapping[str, str] = field(default_factory=dict)
    drafting: Drafting | None = None
    gaps: tuple[str, ...] = ()
    num_draft_gaps: int = 0
    requests: Requests = field(repr=False)
    warm: bool = False

    @property
    def model(self) -> str:
        return self.target.name

    @property
    def is_closed(self) -> bool:
        """Whether clients send the next request when one ends."""
        return self.requests.num_clients is not None

    def run(self, constants: Constants) -> tuple[ServingEngine, ArrayRun]:
        """Serve the requests in simulated time. ValueError, a clause, if the model does not fit or is in no table."""
        drafting = self.drafting
        serving = ComposedEngine(
            engine=self.engine,
            device=self.device,
            degree=self.degree,
            target=self.target.spec,
            quant=self.quant,
            draft=None if drafting is None else drafting.model(self.quant),
            settings=self.settings,
            constants=constants,
            context=int((self.requests.prompt_tokens + self.requests.output_tokens).max()),
        )
        engine = serving.under_load(None if drafting is None else drafting.chains(serving))
        if self.warm:
            for segments in self.requests.segments:
                engine.prefixes.hold(segments)
                engine.prefixes.release(segments)
        return serving, simulate(self.requests, engine)


ReadRow = tuple[dict[str, str], MeasuredRow | UnpredictedError]


def read_rows(
    table: Iterable[tuple[str, dict[str, str]]], row: Callable[[Mapping[str, str]], MeasuredRow]
) -> Iterator[ReadRow]:
    """Every row's cells, with what they mean or why they mean nothing here. table: places and cells.

    ValueError, one sentence, for a cell that cannot be read.
    """
    for where, cells in table:
        try:
            yield cells, row(cells)
        except UnpredictedError as reason:
            yield cells, reason
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
