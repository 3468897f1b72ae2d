"""What engines add to a round of drafting, fitted to published gains over plain decoding, and how far gains are missed.

A gain's error is nearly linear in that time: each row is predicted without it and with `STEP`. Every source counts
alike, however many rows it has, and an engine that few sources tell of stays near what is known before. The spread is
that of gains whose source was not fitted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import joblib
import numpy as np
from scipy.optimize import minimize_scalar

from swiftspec.engines import ENGINES
from swiftspec.engines.constants import Constants
from swiftspec.validation.published.rows import MeasuredRow, UnpredictedError, cell_above_0
from swiftspec.validation.published.speeds import read_speed_rows, user_speed

STEP = 0.5e-3
BEFORE, DEVIATION = 0.4e-3, 0.4e-3  # seconds, before any gain is seen
NOISE = 0.08  # relative standard deviation of a gain
ROWS_OF_A_SOURCE = 10  # rows of one source err together: as many count like this number of independent ones
MOST = 5e-3
WIDE, PRIOR_SOURCES = 0.1, 2  # spread before any gain is seen, which counts like so many sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Log error of a row's gain without any time of rounds, and what a second of it changes."""

    engine: str
    source: str
    model: str
    error: float
    slope: float


def fitted_rounds(path: Path) -> dict[str, dict[str, object]]:
    """Seconds by engine and the spread of gains: of all rows (`all`), and without each source and each model."""
    rows = [row for _, row in read_speed_rows(path, engine=None) if isinstance(row, MeasuredRow)]
    plain = {row.cells["group"]: row for row in rows if row.cells.get("group") and row.drafting is None}
    known = [row for row in rows if row.drafting is not None and (row.cells.get("acc") or row.cells.get("pos"))]
    pairs = [(row, plain[group]) for row in known if (group := row.cells.get("group", "")) in plain]
    found = joblib.Parallel(n_jobs=-1)(joblib.delayed(_gain)(row, base) for row, base in pairs)
    gains = [gain for gain in found if gain is not None]
    sets = {"all": gains}
    for kind in ("source", "model"):
        for name in sorted({getattr(gain, kind) for gain in gains}):
            sets[f"{kind}:{name}"] = [gain for gain in gains if getattr(gain, kind) != name]
    return {name: {"round_s": _by_engine(some), "gain_spread": _spread(some)} for name, some in sets.items()}


def _gain(row: MeasuredRow, base: MeasuredRow) -> Gain | None:
    own, plain = cell_above_0(row.cells, "tok_s_user"), cell_above_0(base.cells, "tok_s_user")
    if own is None or plain is None:
        return None
    constants = replace(row.engine.constants(), round_s=0.0)
    try:
        base_speed = _speed(base, constants)
        without, with_step = (_speed(row, replace(constants, round_s=seconds)) for seconds in (0.0, STEP))
    except (ValueError, UnpredictedError):
        return None
    error = float(np.log(without / base_speed / (own / plain)))
    slope = float(np.log(with_step / without)) / STEP
    return Gain(engine=row.engine.name, source=row.source, model=row.model, error=error, slope=slope)


def _speed(row: MeasuredRow, constants: Constants) -> float:
    _, run = row.run(constants)
    return user_speed(row, run)


def _by_engine(gains: Sequence[Gain]) -> dict[str, float]:
    """The likeliest seconds of every engine; of those without a row the mean of what the others have."""
    found: dict[str, float] = {}
    for name in ENGINES:
        if own := [gain for gain in gains if gain.engine == name]:
            found[name] = _likeliest(own)
    usual = float(np.mean(list(found.values()))) if found else BEFORE
    return {name: float(f"{found.get(name, usual):.4g}") for name in ENGINES}


def _likeliest(gains: Sequence[Gain]) -> float:
    counts: Mapping[str, int] = Counter(gain.source for gain in gains)
    errors, slopes = (np.array([getattr(gain, name) for gain in gains]) for name in ("error", "slope"))
    weights = np.array([min(1.0, ROWS_OF_A_SOURCE / counts[gain.source]) for gain in gains])

    def loss(seconds: float) -> float:
        squares = ((errors + slopes * seconds) / NOISE) ** 2
        return float((weights * 2 * (np.sqrt(1 + squares) - 1)).sum() + ((seconds - BEFORE) / DEVIATION) ** 2)

    return float(minimize_scalar(loss, bounds=(0.0, MOST), method="bounded").x)


def _spread(gains: Sequence[Gain]) -> float:
    """Relative standard deviation of gains whose source was left out: the mean over sources of their squares."""
    squares = [WIDE**2] * PRIOR_SOURCES
    for source in {gain.source for gain in gains}:
        seconds = _by_engine([gain for gain in gains if gain.source != source])
        missed = [gain.error + gain.slope * seconds[gain.engine] for gain in gains if gain.source == source]
        squares.append(float(np.mean(np.square(missed))))
    return float(f"{np.mean(squares) ** 0.5:.4g}")
