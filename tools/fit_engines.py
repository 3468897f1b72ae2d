"""Fit the constants of the described engines to public measurements of loads, and write them.

    python -m tools.fit_engines FILE.csv .. [--engine vllm@0.15] [--speeds FILE.csv] [--out FILE.json]

What kernels do not explain is fitted: a few times per engine, by robust least squares of relative errors of TPOT and
TTFT, all models together; then once without each model, and once without each source, for `--leave-out`. A load's
latencies are nearly linear in these times, so each round simulates every row once for every constant. Intervals are as
wide as models are missed by constants that were fitted without them. What a round of drafting takes beside is fitted
to gains of published speeds (`tools.fit_rounds`) with all others as they are.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log
from pathlib import Path

import joblib
import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from swiftspec.engines import ENGINES, engine_named
from swiftspec.engines.constants import Constants
from swiftspec.engines.description import Engine
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.validation.published.loads import latencies_of, measured_latencies, read_load_rows
from swiftspec.validation.published.rows import MeasuredRow, UnpredictedError
from tools.fit_rounds import fitted_rounds

WIDE, TTFT_WIDE = 0.15, 0.3  # relative standard deviations of engines that were not fitted
# What is known before any load is measured: standard deviations around START.
PRIOR = {
    "layer_s": 20e-6,
    "sparse_layer_s": 20e-6,
    "fp8_layer_s": 10e-6,
    "launch_s": 0.3e-3,
    "request_s": 4e-3,
    "prompt_token_s": 0.7e-6,
    "token_s": 20e-6,
}
START = Constants(
    layer_s=15e-6,
    sparse_layer_s=0.0,
    fp8_layer_s=0.0,
    draft_layer_s=15e-6,
    round_s=0.0,
    launch_s=0.3e-3,
    request_s=6e-3,
    prompt_token_s=3e-6,
    token_s=40e-6,
    spread=WIDE,
    ttft_spread=TTFT_WIDE,
    gain_spread=0.0,
)
# TensorRT-LLM starts a kernel while the one before drains (TRTLLM_ENABLE_PDL, on since 1.2), so little is between them.
STARTS: Mapping[tuple[str, tuple[int, ...]], Constants] = {("trtllm", (1, 2)): replace(START, layer_s=5e-6)}
# Mostly of the op tables, less of an engine: engines differ from a common value by this standard deviation.
COMMON = {"sparse_layer_s": 10e-6, "fp8_layer_s": 5e-6}
LEAST = {"sparse_layer_s": -60e-6}
# Releases from which an engine's constants are other ones.
SINCE: Mapping[str, Sequence[tuple[int, ...]]] = {"sglang": ((), (0, 5, 9)), "trtllm": ((), (1, 2))}
FIGURES = {"tpot_mean_ms": 1.0, "e2e_mean_ms": 1.0, "ttft_p50_ms": 0.3, "ttft_mean_ms": 0.0}  # and their weights
NOISE = 0.05  # relative standard deviation of a figure; errors beyond have less than quadratic weight
# Loads of one model err together: as many count like this number of independent ones.
LOADS_OF_A_MODEL = 5
ROUNDS = 2
STAND_IN = "stands"  # of a format that is not priced
LEAST_ROWS = 4
OF_ROUNDS = ("round_s", "gain_spread")  # fitted by tools.fit_rounds
PRIOR_MODELS = 2
MEDIAN_TO_DEVIATION = 1.4826  # of a normal law: one model that ran otherwise than it is said to says nothing

_Array = npt.NDArray[np.float64]
Key = tuple[str, tuple[int, ...]]  # an engine, and the release from which its constants hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row with its set (engine and release), and what is left out with it."""

    row: MeasuredRow
    key: Key
    model: str
    source: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--engine", type=engine_named, help="of rows that name none")
    parser.add_argument("--speeds", type=Path, help="published speeds with and without drafts; only these are fitted")
    parser.add_argument("--out", type=Path, default=Path("swiftspec/engines/constants.json"))
    options = parser.parse_args(arguments)
    if options.speeds:
        content = json.loads(options.out.read_text())
        options.out.write_text(json.dumps({**content, "rounds": fitted_rounds(options.speeds)}, indent=1) + "\n")
        return 0
    points = [point for path in options.files for point in read_points(path, options.engine)]
    sets = {**fitted_everywhere(points), "rounds": json.loads(options.out.read_text())["rounds"]}
    options.out.write_text(json.dumps(sets, indent=1) + "\n")
    return 0


def read_points(path: Path, engine: Engine | None) -> list[Point]:
    """Rows that can be predicted without drafting, and did not fail."""
    found = []
    for cells, row in read_load_rows(path, engine=engine):
        if isinstance(row, UnpredictedError) or is_odd(row) or cells.get("spec", "none") not in ("", "none"):
            continue
        if cells.get("failed", "0") in ("", "0"):
            key = row.engine.name, since(row.engine)
            found.append(Point(row=row, key=key, model=row.model, source=row.source))
    return found


def is_odd(row: MeasuredRow) -> bool:
    """Whether what is in no table is more than gaps.

    That is another library's experts, a format that is not priced, states, and the waits of ranks for each other.
    """
    stands_in = f"{row.device.name}:{row.quant}" in row.engine.own_experts
    if stands_in or row.target.spec.attention_ranks > 1 or STAND_IN in " ".join(row.gaps):
        return True
    parts = row.target.spec.attentions if isinstance(row.target.spec, SparseSpec) else ()
    return any(part.state_values or getattr(part, "indexer", None) for part in parts)


def since(engine: Engine) -> tuple[int, ...]:
    """The release from which the constants of this one hold."""
    return max(start for start in SINCE.get(engine.name, ((),)) if start <= engine.release)


def fitted_everywhere(points: Sequence[Point]) -> dict[str, object]:
    """The file's content: constants of all points, and of those without each model and each source."""
    known = with_missed(fit(points))
    left_out = {}
    for kind in ("model", "source"):
        for name in sorted({getattr(point, kind) for point in points}):
            others = [one for one in known if getattr(one[0], kind) != name]
            left_out[f"{kind}:{name}"] = entries(others)
    return {"all": entries(known), "left_out": left_out}


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Log errors of a point's figures at some constants, and their derivatives.

    missed: the errors by constants that were fitted without the point's model; empty if there are none.
    """

    names: Sequence[str]
    constants: Constants
    errors: _Array
    slopes: _Array  # [figures, constants]
    weights: _Array
    missed: _Array = field(default_factory=lambda: np.zeros(0))


def fit(points: Sequence[Point]) -> list[tuple[Point, Linear]]:
    """Every point whose model is priced, with errors and slopes near the constants of its engine that fit best."""
    at = {point.key: STARTS.get(point.key, START) for point in points}
    known: list[tuple[Point, Linear]] = []
    for number in range(ROUNDS):
        lines = joblib.Parallel(n_jobs=-1)(joblib.delayed(linear)(point, at[point.key]) for point in points)
        known = [(point, line) for point, line in zip(points, lines, strict=True) if line is not None]
        at |= best(known)
        error = float(np.median([abs(line.errors[0]) for _, line in known]))
        print(f"round {number + 1} of {ROUNDS}: {len(known)} loads, TPOT or E2E off by {error:.1%}", file=sys.stderr)
    return known


def linear(point: Point, constants: Constants) -> Linear | None:
    """None for a row whose model is in no table, or which is off by more than a factor of two."""
    measured = {name: value for name, value in measured_latencies(point.row.cells).items() if name in FIGURES}
    try:
        base = log_errors(point, constants, measured)
    except ValueError:
        return None
    if abs(base[0]) > log(2):
        return None  # it ran in another configuration than the row states
    slopes = []
    for name, deviation in PRIOR.items():
        step = 0.25 * deviation
        moved = replace(constants, **{name: getattr(constants, name) + step})
        slopes.append((log_errors(point, moved, measured) - base) / step)
    return Linear(
        names=list(measured),
        constants=constants,
        errors=base,
        slopes=np.stack(slopes, axis=1),
        weights=np.array([FIGURES[name] for name in measured]),
    )


def log_errors(point: Point, constants: Constants, measured: Mapping[str, float]) -> _Array:
    _, run = point.row.run(constants)
    predicted = latencies_of(run)
    return np.array([np.log(predicted[name] / value) for name, value in measured.items()])


def best(known: Sequence[tuple[Point, Linear]]) -> dict[Key, Constants]:
    """The likeliest constants of every engine and release, given linearised points and what was known before."""
    keys = sorted({point.key for point, _ in known})
    starts = {key: STARTS.get(key, START) for key in keys}
    names = [(key, name) for key in [*keys, None] for name in (PRIOR if key else COMMON)]
    places = {key: [names.index((key, name)) for name in PRIOR] for key in keys}
    own = np.array([names.index((key, name)) for key in keys for name in COMMON])
    common = np.array([names.index((None, name)) for key in keys for name in COMMON])
    deviations = np.array([COMMON[name] for key in keys for name in COMMON])
    scale = np.array([PRIOR[name] for _, name in names])
    mean = np.array([getattr(starts[key or keys[0]], name) for key, name in names]) / scale
    is_free = np.ones(len(names), bool)
    is_free[own] = False
    counts = Counter((point.key, point.model) for point, _ in known)
    terms = []
    for point, line in known:
        share = min(1.0, (LOADS_OF_A_MODEL / counts[point.key, point.model]) ** 0.5) / NOISE
        at = np.array([getattr(line.constants, name) for name in PRIOR])
        terms.append((share * line.weights, line, at, places[point.key]))

    def residuals(x: _Array) -> _Array:
        values = x * scale
        parts = [weights * (line.errors + line.slopes @ (values[place] - at)) for weights, line, at, place in terms]
        return np.concatenate([*parts, (x - mean)[is_free], (values[own] - values[common]) / deviations])

    least = np.array([LEAST.get(name, 0.0) for _, name in names]) / scale
    x = np.maximum(mean, least + 1e-6)
    for loss in ("soft_l1", "cauchy"):  # the second from where the first ends: it has many minima
        x = np.maximum(least_squares(residuals, x, bounds=(least, np.inf), loss=loss).x, least + 1e-9)
    values = (x * scale).tolist()
    return {
        key: replace(starts[key], **{name: values[place] for name, place in zip(PRIOR, places[key], strict=True)})
        for key in keys
    }


def with_missed(known: Sequence[tuple[Point, Linear]]) -> list[tuple[Point, Linear]]:
    """Every point with its errors by constants that were fitted without its model."""
    without = {
        model: best([one for one in known if one[0].model != model]) for model in {point.model for point, _ in known}
    }
    found = []
    for point, line in known:
        constants = without[point.model].get(point.key)
        if constants is not None:
            moved = np.array([getattr(constants, name) - getattr(line.constants, name) for name in PRIOR])
            line = replace(line, missed=line.errors + line.slopes @ moved)
        found.append((point, line))
    return found


def spreads(group: Sequence[tuple[Point, Linear]]) -> dict[str, float]:
    """Relative standard deviations: how far models are missed when they are left out, one error each.

    What is assumed of an engine without any counts like `PRIOR_MODELS` of them, since few models tell little.
    """
    found = {}
    for spread, wide, is_ttft in (("spread", WIDE, False), ("ttft_spread", TTFT_WIDE, True)):
        by_model: dict[str, list[float]] = {}
        for point, line in group:
            errors = zip(line.names, np.abs(line.missed).tolist(), strict=False)
            own = [error for name, error in errors if name.startswith("ttft") == is_ttft]
            by_model.setdefault(point.model, []).extend(own)
        missed = [np.median(errors) for errors in by_model.values() if errors]
        deviation = MEDIAN_TO_DEVIATION * np.median(missed) if missed else 0.0
        squares = len(missed) * deviation**2 + PRIOR_MODELS * wide**2
        found[spread] = float((squares / (len(missed) + PRIOR_MODELS)) ** 0.5)
    return found


def entries(known: Sequence[tuple[Point, Linear]]) -> list[dict[str, object]]:
    """One entry for each engine and release; an engine without enough points has the median of the others'."""
    groups: dict[Key, list[tuple[Point, Linear]]] = {}
    for point, line in known:
        groups.setdefault(point.key, []).append((point, line))
    fitted = {key: found for key, found in best(known).items() if len(groups[key]) >= LEAST_ROWS}
    other = {name: float(np.median([getattr(one, name) for one in fitted.values()])) for name in PRIOR}
    found: list[dict[str, object]] = []
    for name in ENGINES:
        for start in SINCE.get(name, ((),)):
            key = (name, start)
            constants = fitted.get(key) or replace(START, **other)
            group = groups.get(key, []) if key in fitted else []
            constants = replace(constants, draft_layer_s=constants.layer_s)
            if group:
                constants = replace(constants, **spreads(group))
            fitted_here = {name: value for name, value in asdict(constants).items() if name not in OF_ROUNDS}
            models = ", ".join(sorted({point.model for point, _ in group}))
            found.append(
                {
                    "engine": name,
                    "since": list(start),
                    "constants": {name: float(f"{value:.4g}") for name, value in fitted_here.items()},
                    "fitted_on": f"{len(group)} loads of {models}" if group else "medians of the measured engines",
                    "assumed": ["draft_layer_s"] if group else list(fitted_here),
                }
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
