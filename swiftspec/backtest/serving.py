"""Serving points measured by others: time per output token while a few requests share a server.

A step decodes every request once. Requests come one after another, so while one of C requests decodes, each of the
others is replaced once: their C - 1 prefills share the devices with its decoding steps. Only a share of that is
waiting, since a prompt's rows run together with decoding ones, and requests that start together do not wait.

    TPOT = step + host + (C - 1) / (output tokens) * share * prefill

Steps and prefills are composed from op tables; host times and the share are fitted to the shipped points, with four
constants for all of them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from swiftspec.backtest.rows import SPARSE_TPOT, Constant, Row
from swiftspec.costmodel.constants import CONSTANTS, fitted_constants
from swiftspec.costmodel.forward import forward_parts
from swiftspec.costmodel.importing import Record, read_rows
from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.shipped import kernels_of
from swiftspec.devices import DEVICES
from swiftspec.models import QUANTISATIONS, known_model, model_names
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.models.spec import ModelSpec

__all__ = [
    "FITTED",
    "POINTS",
    "SPARSE_POINTS",
    "Points",
    "ServingPoint",
    "fit_constants",
    "read_points",
    "serving_rows",
]

POINTS, SPARSE_POINTS = (Path(__file__).with_name("data") / name for name in ("serving.csv", "serving_sparse.csv"))
FITTED = ("host_vllm_s", "host_trtllm_s", "host_group_s", "prefill_share")
_SOURCE = "NVIDIA, in aiconfigurator-core 0.12.0"
_COLLECTIVES = {"vllm": "vllm_custom", "sglang": "sglang_custom", "trtllm": "trtllm"}
_ROBUST = 0.04  # relative residuals beyond this have less than quadratic weight
_COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("system", "model", "framework", "quant", "gemm_quant", "id"), str),
    **dict.fromkeys(("batch", "tp", "attention_dp", "moe_tp", "moe_ep", "concurrency", "isl", "osl"), int),
    "tpot_ms": float,
}
_OF_EXPERTS = ("attention_dp", "moe_tp", "moe_ep")  # which a file of dense models may lack
_OPTIONAL = (*_OF_EXPERTS, "concurrency", "quant", "gemm_quant", "id")
_DEGREES_IN_ID = re.compile(r"_tp(\d+)(?:_\d+)?_ep(\d+)")
_FORMATS = {"bfloat16": "bf16", "float16": "bf16", "fp16": "bf16", "int8_wo": "int8", "int4_wo": "int4"}
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """One measured configuration. `batch`: requests at once; lengths in tokens."""

    name: str
    device: str
    model: str
    spec: ModelSpec
    framework: str
    quant: str
    degree: int
    batch: int
    input_length: int
    output_length: int
    tpot_s: float

    @property
    def system(self) -> tuple[str, str, str, int]:
        """Key by which points are left out together: everything that a deployment fixes."""
        return self.device, self.model, self.framework, self.degree

    @property
    def kv_dtype(self) -> str:
        """TensorRT-LLM's fp8 checkpoints quantise the KV cache as well; the other engines keep it in bf16."""
        return "fp8" if (self.framework, self.quant) == ("trtllm", "fp8") else "bf16"

    @property
    def other_prefills(self) -> float:
        """Prefills of other requests per decoding step."""
        return (self.batch - 1) / self.output_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points of a file, and the number of its rows that are not predicted, by reason."""

    points: tuple[ServingPoint, ...]
    skipped: Mapping[str, int]


def serving_rows(path: Path | None = None) -> tuple[list[Row], list[Constant]]:
    """Rows of predicted and measured TPOT, and the constants they use.

    Without a path, the shipped points, to which the constants were fitted. `error_leave_one_out` is the error with
    constants fitted without any point of the same device, model, engine and TP degree.

    Raises
    ------
    ValueError
        One sentence naming file and line of a row that cannot be read, or if no row can be predicted.
    """
    found = read_points(path or POINTS)
    if not found.points:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.skipped.items())
        raise ValueError(f"{path}: no row can be predicted: {reasons or 'it has none'}")
    fitted = [_Terms.of(point) for point in read_points(POINTS).points]
    values = np.array([CONSTANTS[name] for name in FITTED])
    source = _SOURCE if path in (None, SPARSE_POINTS) else path.name
    rows = [_row(point, fitted, values, source=source) for point in found.points]
    return rows, [
        Constant(name=fact.name, value=fact.value, unit=fact.unit, fitted_on=fact.fitted_on)
        for fact in fitted_constants()
    ]


def _row(point: ServingPoint, fitted: Sequence["_Terms"], values: _Array, *, source: str) -> Row:
    terms = _Terms.of(point)
    left = _left_out(point.system, tuple(fitted))
    return Row(
        name=f"{point.model} {point.quant}, {point.framework}, {point.degree} x {point.device}, batch {point.batch}, "
        f"{point.input_length}/{point.output_length}",
        quantity=SPARSE_TPOT if isinstance(point.spec, SparseSpec) else "TPOT, ms",
        published=point.tpot_s * 1e3,
        predicted=terms.predict(values) * 1e3,
        error_leave_one_out=terms.predict(left) / point.tpot_s - 1,
        source=f"{source}, {point.name}".rstrip(", "),
    )


@dataclass(frozen=True, slots=True)
class _Terms:
    """A point's TPOT as a linear function of the fitted constants."""

    point: ServingPoint
    step_s: float
    factors: tuple[float, ...]

    @classmethod
    def of(cls, point: ServingPoint) -> "_Terms":
        vllm = {"vllm": 1.0, "trtllm": 0.0}.get(point.framework, 0.5)  # the mean of both for an engine without points
        factors = (vllm, 1.0 - vllm, log2(point.degree), point.other_prefills * _prefill_s(point))
        return cls(point, _step_s(point), factors)

    def predict(self, values: _Array) -> float:
        return float(self.step_s + np.dot(self.factors, values))


def _step_s(point: ServingPoint) -> float:
    """Seconds of every request's next token, at the context in the middle of an output; devices only."""
    parts = forward_parts(
        point.spec,
        kernels=kernels_of(point.device, framework=point.framework),
        quant=point.quant,
        degree=point.degree,
        rows=point.batch,
        sequences=point.batch,
        context=point.input_length + point.output_length // 2,
        collective=_collective(point),
        kv_dtype=point.kv_dtype,
    )
    return sum(part.seconds for part in parts)


def _prefill_s(point: ServingPoint) -> float:
    """Seconds of one request's prefill; devices only."""
    parts = forward_parts(
        point.spec,
        kernels=kernels_of(point.device, framework=point.framework),
        quant=point.quant,
        degree=point.degree,
        rows=point.input_length,
        context=0,
        answers=1,
        kv_dtype=point.kv_dtype,
    )
    return sum(part.seconds for part in parts)


def _collective(point: ServingPoint) -> str | None:
    """The engine's own all-reduce if it was measured, otherwise the fastest one."""
    kernels: Kernels = kernels_of(point.device, framework=point.framework)
    own = _COLLECTIVES[point.framework]
    return own if own in kernels.collectives(point.degree) else None


def fit_constants(points: Sequence[ServingPoint]) -> dict[str, float]:
    """The four constants by robust least squares of relative errors, none below 0."""
    values = _fit([_Terms.of(point) for point in points])
    return dict(zip(FITTED, values.tolist(), strict=True))


def _fit(terms: Sequence[_Terms]) -> _Array:
    measured = np.array([term.point.tpot_s for term in terms])
    steps = np.array([term.step_s for term in terms]) / measured
    factors = np.array([term.factors for term in terms]) / measured[:, None]
    start = np.array([CONSTANTS[name] for name in FITTED])
    found = least_squares(
        lambda x: steps + factors @ (x * start) - 1.0,
        np.ones(len(FITTED)),
        jac=lambda _: factors * start,
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_ROBUST,
    )
    values: _Array = found.x * start
    # A constant that no remaining point depends on keeps its fit to all points.
    return np.where(factors.any(axis=0), values, start)


@cache
def _left_out(system: tuple[str, str, str, int], terms: tuple[_Terms, ...]) -> _Array:
    return _fit([term for term in terms if term.point.system != system])


def read_points(path: Path) -> Points:
    """Points of a CSV file with the columns of the shipped one; further columns are ignored.

    A row without a quantisation is in bf16; one without a concurrency has as many requests as its batch. Rows of
    unknown models, devices or engines are only counted, as are those of attention that is data-parallel, and those that
    repeat a measurement under another id.

    A row's id, where it has the degrees, counts rather than its columns: some of these are products of both.

    Raises
    ------
    ValueError
        One sentence naming file and line for a row that cannot be read.
    """
    skipped: Counter[str] = Counter()
    points: dict[ServingPoint, ServingPoint] = {}
    for row in read_rows(path, _COLUMNS, optional=_OPTIONAL, absent=_OF_EXPERTS):
        reason = _unpriced(row)
        if reason:
            skipped[reason] += 1
            continue
        point = _point(row)
        if points.setdefault(replace(point, name=""), point) is not point:
            skipped["repeating the measurement of another row"] += 1
    return Points(points=tuple(points.values()), skipped=dict(skipped))


def _unpriced(row: Record) -> str | None:
    if str(row["system"]).replace("_", "-") not in DEVICES:
        return "of a device that is not in the registry"
    if row["framework"] not in _COLLECTIVES:
        return "of an engine without constants"
    if _quant(row) is None:
        return "of a weight format that is not in the registry"
    if _model_name(str(row["model"])) is None:
        return "of a model that is not in the registry"
    if _is_data_parallel(row):
        return "with data-parallel attention, which is not planned"
    return None


def _is_data_parallel(row: Record) -> bool:
    """Whether devices attend to different requests: stated, or from experts on more devices than attention."""
    on_experts = int(row.get("moe_tp", 1)) * int(row.get("moe_ep", 1))
    stated = int(row.get("attention_dp", 1))
    if int(row["tp"]) == 1:
        return max(stated, on_experts) > 1
    return not _DEGREES_IN_ID.search(str(row.get("id", ""))) and int(row["tp"]) < on_experts


def _degrees(row: Record) -> tuple[int, bool]:
    """Devices of a group, and whether they hold whole experts."""
    degree, whole = int(row["tp"]), int(row.get("moe_ep", 1))
    if found := _DEGREES_IN_ID.search(str(row.get("id", ""))):
        degree, whole = int(found[1]), int(found[2])
    elif degree == int(row.get("moe_tp", 1)) * whole and degree > whole > 1:
        degree = whole
    return degree, whole > 1


def _point(row: Record) -> ServingPoint:
    model = _model_name(str(row["model"]))
    quant = _quant(row)
    assert model is not None, "checked before"
    assert quant is not None, "checked before"
    degree, whole = _degrees(row)
    spec = known_model(model).spec
    return ServingPoint(
        name=str(row.get("id", "")),
        device=str(row["system"]).replace("_", "-"),
        model=model,
        spec=spec.with_whole_experts() if whole and isinstance(spec, SparseSpec) and spec.experts else spec,
        framework=str(row["framework"]),
        quant=quant,
        degree=degree,
        batch=int(row.get("concurrency") or row["batch"]),
        input_length=int(row["isl"]),
        output_length=int(row["osl"]),
        tpot_s=float(row["tpot_ms"]) * 1e-3,
    )


def _quant(row: Record) -> str | None:
    """Name of the matrices' format; scales per block or row make no difference in latency."""
    stated = str(row.get("gemm_quant") or row.get("quant") or "bf16")
    if stated.startswith("fp8"):
        return "fp8"
    name = _FORMATS.get(stated, stated)
    if "gpt-oss" in str(row["model"]):
        name = "mxfp4"  # its checkpoint's only format, whatever the column says
    return name if name in QUANTISATIONS else None


def _model_name(repository: str) -> str | None:
    """Known name of a repository's model, or of the base model of an instruction-tuned or quantised one."""
    return next((name for name in _spellings(repository) if name in model_names()), None)


def _spellings(repository: str) -> Iterator[str]:
    name = repository.rpartition("/")[2].lower().removeprefix("meta-")
    yield name
    for suffix in ("-fp8", "-hf", "-instruct", "-it"):
        name = name.removesuffix(suffix)
        yield name
