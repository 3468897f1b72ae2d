"""Rows of a file of measured loads: what was served, where, under which load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.devices import DeviceSpec
from swiftspec.devices.accelerators import DEVICES
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
from swiftspec.scheduler.prefix_cache import Segment
from swiftspec.validation.published.drafted import Drafting, drafting_of

__all__ = ["NVFP4", "LoadRow", "UnpredictedError", "read_load_rows", "with_usual_names"]

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
# InferenceX draws lengths from 0.8 to 1.0 of those it states, and sends ten times as many prompts as it has clients.
_INFERENCEX: Final = ("InferenceX", "InferenceMAX")  # its names
_INFERENCEX_SHARE: Final = 0.8
_PROMPTS_PER_CLIENT: Final = 10
# Clients whose answers all have one length stay in step in a simulation; real ones drift apart, as their times to the
# first token show: with lengths of +-10 % these are right.
_UNEVEN: Final = 0.1
_MOST_PROMPTS: Final = 2_000  # of a closed loop that states no number: more change nothing


class UnpredictedError(ValueError):
    """Why a row cannot be predicted, a clause."""


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
        return "InferenceX" if stated.startswith(_INFERENCEX) else stated

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
    """Every row's cells, with what they mean or why they mean nothing here.

    engine: of rows that name none. ValueError, one sentence, if the file cannot be read, or has none of the columns.
    """
    for number, (where, cells) in enumerate(read_table(path)):
        if number == 0:
            _require(path, cells)
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


def _require(path: Path, cells: Mapping[str, str]) -> None:
    for names in (("model",), ("device",), ("concurrency", "rate_per_s"), ("output_tokens",)):
        known = [*names, *(other for name in names for other in _ALIASES.get(name, ()))]
        if not any(each in cells for each in known):
            raise ValueError(f"{path}, line 1: column {names[0]} is missing; expected it or {', '.join(known[1:])}")


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
        gaps=(*gaps, *more),
        requests=_requests(cells),
        warm=(_number(cells, "stage") or 0.0) > 0,
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
    degree, whole = _count(cells, "devices", default=1), _count(cells, "ep", default=1)
    divided = _count(cells, "moe_tp", default=1) if "moe_tp" in cells else 0
    found = _DEGREES_IN_ID.search(cells.get("id", ""))
    is_parallel = _count(cells, "attention_dp", default=1) > 1
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
    if name not in DEVICES:
        raise UnpredictedError(f"device is {stated!r}, which is not registered" if stated else "device is missing")
    return DEVICES[name]


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


def _requests(cells: Mapping[str, str]) -> Requests:
    prompts, segments_of = _prompt(cells)
    outputs = _count(cells, "output_tokens")
    rng = np.random.default_rng(0)
    share = _share(cells)
    if cells.get("concurrency"):
        clients = _count(cells, "concurrency")
        stated = _count(cells, "num_prompts", default=0)
        count = stated or max(4 * clients, min(_PROMPTS_PER_CLIENT * clients, _MOST_PROMPTS))
        arrivals = np.zeros(count)
    else:
        clients, rate = None, _number(cells, "rate_per_s")
        if rate is None or rate <= 0:
            raise UnpredictedError("neither concurrency nor rate_per_s is stated")
        duration = _number(cells, "duration_s", default=600.0)
        assert duration is not None, "it has a default"
        arrivals = _arrivals(cells.get("arrivals", ""), rate, max(1, round(rate * duration)), rng)
        count = len(arrivals)
    return Requests(
        arrival_s=arrivals,
        prompt_tokens=_lengths(prompts, share, count, rng),
        output_tokens=_uneven(outputs, count, rng) if clients and share == 1 else _lengths(outputs, share, count, rng),
        segments=[segments_of(number) for number in range(count)],
        num_clients=clients,
    )


def _prompt(cells: Mapping[str, str]) -> tuple[int, Callable[[int], list[Segment]]]:
    """Tokens of a prompt, and what of the one of a number is shared with others."""
    shared = _count(cells, "system_prompt_tokens", default=0)
    own = _count(cells, "question_tokens", "input_tokens", default=0)
    if not shared + own:
        raise UnpredictedError("input_tokens is missing")
    distinct = _count(cells, "distinct_prompts", default=0)
    cached = _number(cells, "cached_share", default=0.0)
    assert cached is not None, "it has a default"
    if not 0 <= cached <= 1:
        raise ValueError(f"cached_share is {cached:g}; expected 0 to 1")

    def segments(number: int) -> list[Segment]:
        found: list[Segment] = [("system", shared)] if shared else []
        if distinct:
            found.append((number % distinct, own))
        elif cached:
            found.append(("shared", round(cached * own)))
        return found

    return shared + own, segments


def _share(cells: Mapping[str, str]) -> float:
    stated = _number(cells, "length_share")
    if stated is None:
        return _INFERENCEX_SHARE if cells.get("source", "").startswith(_INFERENCEX) else 1.0
    if not 0 < stated <= 1:
        raise ValueError(f"length_share is {stated:g}; expected above 0, up to 1")
    return stated


def _lengths(most: int, share: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    return rng.integers(max(1, round(share * most)), most, size=count, endpoint=True)


def _uneven(mean: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    least, most = (max(1, round((1 + sign * _UNEVEN) * mean)) for sign in (-1, 1))
    return rng.integers(least, most, size=count, endpoint=True)


def _arrivals(process: str, rate: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    if process == "even":
        return np.asarray(np.arange(count) / rate, np.float64)
    if process in ("", "constant"):
        # As inference-perf makes a constant load: exponential gaps, scaled so that they fill the duration.
        gaps = rng.exponential(1.0, count)
        return np.asarray(np.cumsum(gaps) * (count / rate / gaps.sum()), np.float64)
    if process == "poisson":
        return np.asarray(np.cumsum(rng.exponential(1 / rate, count)), np.float64)
    if process == "bursty":
        return np.asarray(rng.gamma(0.25, 4 / rate, count), np.float64).cumsum()
    raise ValueError(f"arrivals is {process!r}; expected constant, even, poisson or bursty")


def _count(cells: Mapping[str, str], *names: str, default: int | None = None) -> int:
    found = _number(cells, *names)
    if found is None:
        if default is None:
            raise UnpredictedError(f"{names[0]} is missing")
        return default
    if found != int(found) or found < 0:
        raise ValueError(f"{names[0]} is {found:g}; expected a whole number")
    return int(found)


def _number(cells: Mapping[str, str], *names: str, default: float | None = None) -> float | None:
    for name in names:
        text = cells.get(name, "").strip()
        if text:
            try:
                value = float(text)
            except ValueError:
                raise ValueError(f"{name} is {text!r}; expected a number") from None
            if not np.isfinite(value):
                raise ValueError(f"{name} is {text}; expected a finite number")
            return value
    return default
