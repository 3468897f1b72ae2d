"""Rows of a file of measured speeds: target, drafting method, device, engine and load, as publications state them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from swiftspec.devices import DeviceSpec, registered_device
from swiftspec.devices.accelerators import DEVICES
from swiftspec.engines import engine_named
from swiftspec.engines.description import Engine
from swiftspec.files.csv_rows import read_table
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.planner.deployment import PlannedModel
from swiftspec.policies.effects import Role
from swiftspec.validation.published.cells import UnpredictedError
from swiftspec.validation.published.drafted import Drafting, drafting_of
from swiftspec.validation.published.load_rows import NVFP4

__all__ = ["SpeedRow", "read_speed_rows"]

_PROMPT, _OUTPUT = 512, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One published speed; fields as of `LoadRow`. drafting: None for plain decoding."""

    cells: Mapping[str, str]
    engine: Engine
    device: DeviceSpec
    degree: int
    target: PlannedModel
    quant: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    drafting: Drafting | None
    gaps: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Its class in summaries."""
        return self.cells.get("cls") or ("drafted" if self.drafting else "plain")


def read_speed_rows(
    path: Path, *, engine: Engine | None
) -> Iterator[tuple[dict[str, str], SpeedRow | UnpredictedError]]:
    """Every row's cells, with what they mean or why they mean nothing here.

    engine: of rows that name none. ValueError, one sentence, if the file cannot be read, or has none of the columns.
    """
    for number, (where, cells) in enumerate(read_table(path)):
        if number == 0:
            for name in ("target", "gpu", "conc"):
                if name not in cells:
                    raise ValueError(f"{path}, line 1: column {name} is missing; expected target, gpu and conc")
        try:
            yield cells, _row(cells, engine)
        except UnpredictedError as reason:
            yield cells, reason
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _row(cells: Mapping[str, str], engine: Engine | None) -> SpeedRow:
    gaps: list[str] = []
    layout = cells.get("par", "")
    if re.search(r"\bDP", layout):
        raise UnpredictedError("attention in data parallel is not planned")
    conc = _whole(cells, "conc")
    if conc is None:
        raise UnpredictedError("conc is missing")
    target = _target(cells, gaps)
    if "EP" in layout and isinstance(target.spec, SparseSpec) and target.spec.experts:
        target = target.with_whole_experts()
    return SpeedRow(
        cells=cells,
        engine=_engine(cells, engine, gaps),
        device=_device(cells, gaps),
        degree=_whole(cells, "gpus") or _assumed(gaps, "number of devices", 1),
        target=target,
        quant=_format(cells, target, gaps),
        num_requests=conc,
        prompt_tokens=_whole(cells, "isl") or _assumed(gaps, "prompt length", _PROMPT),
        output_tokens=_whole(cells, "osl") or _assumed(gaps, "output length", _OUTPUT),
        drafting=drafting_of(cells, target, gaps),
        gaps=tuple(gaps),
    )


def _assumed(gaps: list[str], name: str, value: int) -> int:
    gaps.append(name)
    return value


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
    if release is None or "dev" in stated:
        gaps.append(f"release of {found.full_name}")
        return found
    return found.at(release[1])


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
    if target.name.startswith("gpt-oss"):
        return "mxfp4"
    if not stated:
        gaps.append("weight format")
        return "bf16"
    if stated.endswith("?"):
        gaps.append("weight format")
    name = stated.rstrip("?")
    if name in ("nvfp4", "fp4"):
        gaps.append(NVFP4)
        return "fp8"
    found = {"fp16": "bf16"}.get(name, name)
    if found not in ("bf16", "fp8", "int8", "int4", "mxfp4"):
        raise UnpredictedError(f"weights in {stated!r} are not priced")
    return found


def _whole(cells: Mapping[str, str], name: str) -> int | None:
    text = cells.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; expected a number") from None
    if not 1 <= value < 1e7 or value != int(value):
        raise ValueError(f"{name} is {text}; expected a whole number from 1 on")
    return int(value)
