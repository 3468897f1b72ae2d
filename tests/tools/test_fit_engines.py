"""The fit of engines' constants: what was planted is found, and a model that is left out is predicted by the others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from swiftspec.validation.published.rows import MeasuredRow
from tools.fit_engines import PRIOR, PRIOR_MODELS, START, WIDE, Linear, Point, best, spreads, with_missed

KEY = ("vllm", ())
PLANTED = replace(START, layer_s=22e-6, sparse_layer_s=-8e-6, request_s=7e-3)
UNUSED = cast(MeasuredRow, None)  # a point's row is simulated elsewhere


def point(model: str, *, layers_s: float, sparse: bool, misses: float = 0.0, seed: int = 0) -> tuple[Point, Linear]:
    """A load whose TPOT has so many seconds of layers, and whose TTFT is 25 ms, both off by a factor exp(misses)."""
    slopes = np.zeros((2, len(PRIOR)))
    names = list(PRIOR)
    slopes[0, names.index("layer_s")] = layers_s
    slopes[0, names.index("sparse_layer_s")] = layers_s if sparse else 0.0
    slopes[1, names.index("request_s")] = 1 / 25e-3
    moved = np.array([getattr(START, name) - getattr(PLANTED, name) for name in PRIOR])
    noise = np.random.default_rng(seed).normal(0, 0.002, 2)
    line = Linear(
        names=["tpot_mean_ms", "ttft_p50_ms"],
        constants=START,
        errors=slopes @ moved + misses + noise,
        slopes=slopes,
        weights=np.array([1.0, 0.3]),
    )
    return Point(row=UNUSED, key=KEY, model=model, source="here"), line


def loads(**misses: float) -> list[tuple[Point, Linear]]:
    """Loads of four models, two of them with experts."""
    return [
        point(model, layers_s=80 / 10e-3 + 500 * number, sparse=model.startswith("m"), misses=miss, seed=number)
        for model in ("d1", "d2", "m1", "m2")
        for number in range(12)
        for miss in [misses.get(model, 0.0)]
    ]


def test_planted_constants_are_found() -> None:
    (found,) = best(loads()).values()
    assert found.layer_s == pytest.approx(PLANTED.layer_s, rel=0.05)
    assert found.sparse_layer_s == pytest.approx(PLANTED.sparse_layer_s, rel=0.15)
    assert found.request_s == pytest.approx(PLANTED.request_s, rel=0.05)


def missed(known: Sequence[tuple[Point, Linear]], model: str) -> float:
    return float(np.median([line.missed[0] for one, line in with_missed(known) if one.model == model]))


def test_a_model_is_missed_by_what_the_others_do_not_know_of_it() -> None:
    assert abs(missed(loads(), "m2")) < 0.02
    assert missed(loads(m2=0.2), "m2") == pytest.approx(0.2, abs=0.02)


def test_intervals_are_as_wide_as_models_are_missed() -> None:
    alike = spreads(with_missed(loads()))["spread"]
    # Four models that are hit, and as many as are assumed to be missed as those of an unknown engine.
    assert alike == pytest.approx(WIDE * (PRIOR_MODELS / (4 + PRIOR_MODELS)) ** 0.5, rel=0.05)
    assert spreads(with_missed(loads(d1=-0.3, m1=0.3, m2=0.2)))["spread"] > 1.5 * alike
    # One model that ran otherwise than its rows say: a root mean square would be 0.26.
    assert spreads(with_missed(loads(d1=0.6)))["spread"] < 0.2
