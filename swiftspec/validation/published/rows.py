"""A row of a file of measurements: its numbers, what was served where, and the load that it was under."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.devices import DeviceSpec
from swiftspec.engines.constants import Constants
from swiftspec.engines.description import Engine
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.quantisation import QUANTISATIONS
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.composed_engine import ComposedEngine
from swiftspec.planner.under_load.loads import UNEVEN, ArrayRun, Requests, closed_loop_workload, requests_of
from swiftspec.planner.under_load.serving_engine import ServingEngine
from swiftspec.scheduler.prefix_cache import Segment
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
            drafts=None if drafting is None else drafting.model(self.quant),
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


# InferenceX draws lengths from 0.8 to 1.0 of those it states, and sends ten times as many prompts as it has clients.
INFERENCEX: Final = ("InferenceX", "InferenceMAX")  # its names
TEMPLATED: Final = "random, in a chat template"  # its prompts to targets that draft
_INFERENCEX_SHARE: Final = 0.8
_PROMPTS_PER_CLIENT: Final = 10
_MOST_REQUESTS: Final = 1_000_000  # of a row
_MOST_PROMPTS: Final = 2_000  # of a closed loop that states no number: more change nothing


def stated_requests(cells: Mapping[str, str]) -> Requests:
    """The requests of a row. UnpredictedError if it states too few, ValueError for a value that is none."""
    prompts, segments_of = _prompt(cells)
    outputs = cell_count(cells, "output_tokens")
    rng = np.random.default_rng(0)
    share = _share(cells)
    if cells.get("concurrency"):
        clients = cell_count(cells, "concurrency")
        stated = cell_count(cells, "num_prompts", default=0)
        count = stated or max(4 * clients, min(_PROMPTS_PER_CLIENT * clients, _MOST_PROMPTS))
        arrivals = np.zeros(_checked(count))
    else:
        clients, rate = None, cell_number(cells, "rate_per_s")
        if rate is None or rate <= 0:
            raise UnpredictedError("neither concurrency nor rate_per_s is stated")
        duration, burstiness = cell_number(cells, "duration_s"), cell_number(cells, "burstiness")
        most = _checked(max(1.0, rate * (600.0 if duration is None else duration)))
        arrivals = _arrivals(
            cells.get("arrivals", ""), rate, most, rng, burstiness=1.0 if burstiness is None else burstiness
        )
        count = len(arrivals)
    return Requests(
        arrival_s=arrivals,
        prompt_tokens=_lengths(prompts, share, count, rng),
        output_tokens=_uneven(outputs, count, rng)
        if (clients or 0) > 1 and share == 1
        else _lengths(outputs, share, count, rng),
        segments=[segments_of(number) for number in range(count)],
        num_clients=clients,
    )


# Prompts of public data sets, which a run sends once each: its last answers are written with ever fewer requests.
_DATA_SETS: Final[Mapping[str, int]] = {
    "mt-bench": 80,
    "humaneval": 164,
    "spec-bench": 480,
    "math500": 500,
    "math-500": 500,
    "alpaca": 805,
    "speed-bench": 880,
    "gsm8k": 1319,
}
_STEADY: Final = 20  # prompts per client of a run whose ends hardly count
_LENGTH_SHAPE: Final = 2.0  # gamma law of answers that end by themselves, assumed: a coefficient of variation of 0.7


def text_requests(data_set: str, *, clients: int, prompt_tokens: int, output_tokens: int) -> Requests:
    """Requests of clients that each send the next one when one ends: the prompts of a data set, where it is known.

    data_set: its name, `MT-Bench`, or with a number of its prompts, `MT-Bench, 20 questions`.
    """
    name = data_set.strip().lower()
    stated = re.search(r"(\d+) (?:questions|prompts|samples|requests)", name)
    known = next((count for word, count in _DATA_SETS.items() if name.startswith(word)), None)
    count = int(stated[1]) if stated else known
    if count is None or not 0 < count < _STEADY * max(clients, 4):
        return requests_of(closed_loop_workload(clients, prompt_tokens, output_tokens))
    lengths = np.random.default_rng(0).gamma(_LENGTH_SHAPE, output_tokens / _LENGTH_SHAPE, count)
    lengths *= output_tokens / lengths.mean()
    return Requests(
        arrival_s=np.zeros(count),
        prompt_tokens=np.full(count, prompt_tokens),
        output_tokens=np.maximum(lengths.round(), 1).astype(np.int64),
        num_clients=clients,
    )


def _checked(count: float) -> int:
    if not count <= _MOST_REQUESTS:
        raise ValueError(f"the row has {count:g} requests; expected at most {_MOST_REQUESTS}")
    return round(count)


def _prompt(cells: Mapping[str, str]) -> tuple[int, Callable[[int], list[Segment]]]:
    """Tokens of a prompt, and what of the one of a number is shared with others."""
    shared = cell_count(cells, "system_prompt_tokens", default=0)
    own = cell_count(cells, "question_tokens" if cells.get("question_tokens") else "input_tokens", default=0)
    if not shared + own:
        raise UnpredictedError("input_tokens is missing")
    distinct = cell_count(cells, "distinct_prompts", default=0)
    cached = cell_number(cells, "cached_share") or 0.0
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
    stated = cell_number(cells, "length_share")
    if stated is None:
        return _INFERENCEX_SHARE if cells.get("source", "").startswith(INFERENCEX) else 1.0
    if not 0 < stated <= 1:
        raise ValueError(f"length_share is {stated:g}; expected above 0, up to 1")
    return stated


def _lengths(most: int, share: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    return rng.integers(max(1, round(share * most)), most, size=count, endpoint=True)


def _uneven(mean: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    least, most = (max(1, round((1 + sign * UNEVEN) * mean)) for sign in (-1, 1))
    return rng.integers(least, most, size=count, endpoint=True)


def _arrivals(
    process: str, rate: float, count: int, rng: np.random.Generator, *, burstiness: float
) -> npt.NDArray[np.float64]:
    if not 0 < burstiness < np.inf:
        raise ValueError(f"burstiness is {burstiness:g}; expected more than 0")
    if process == "even":
        return np.asarray(np.arange(count) / rate, np.float64)
    if process in ("", "constant"):
        # As inference-perf makes a constant load, and vllm bench serve any: gaps scaled so that they fill the duration.
        gaps = rng.exponential(1.0, count) if burstiness == 1 else rng.gamma(burstiness, 1 / burstiness, count)
        return np.asarray(np.cumsum(gaps) * (count / rate / gaps.sum()), np.float64)
    if process == "poisson":
        return np.asarray(np.cumsum(rng.exponential(1 / rate, count)), np.float64)
    if process == "bursty":
        return np.asarray(rng.gamma(0.25, 4 / rate, count), np.float64).cumsum()
    raise FieldError("arrivals", repr(process), "expected constant, even, poisson or bursty")
