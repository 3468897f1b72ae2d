"""Fits of verifications to the experts that they touch."""

import pytest

from swiftspec.artifacts.routes import ExpertsTouched, TouchedPoint
from swiftspec.costmodel.routed_profile import expert_fits
from tests.artifacts.test_profile import profile, step

TOUCHED = ExpertsTouched(
    num_experts=16,
    num_active=2,
    points=tuple(
        TouchedPoint(rows=rows, experts=experts)
        for rows, experts in ((1, 2.0), (2, 3.5), (4, 6.0), (8, 9.0), (16, 11.0))
    ),
)


def test_times_that_follow_the_experts_are_met_by_them_and_not_by_rows() -> None:
    steps = [step(point.rows, 64, 0.01 + 0.002 * point.experts + 0.001 * point.rows) for point in TOUCHED.points]
    others = [step(3, 64, 9.0), step(1, 0, 9.0)]  # a size without a count, another context
    measured = profile([*steps, *others]).model_copy(update={"experts_touched": TOUCHED})
    (fit,) = expert_fits(measured, context=64)
    assert list(fit.seconds) == [1, 2, 4, 8, 16]
    median = steps[0].latency.median_s / 0.015
    assert (fit.fixed_s, fit.expert_s, fit.row_s) == pytest.approx((0.01 * median, 0.002 * median, 0.001 * median))
    assert fit.largest_error < 1e-6
    assert fit.largest_error_by_rows > 0.02


def test_a_dense_profile_has_no_fit() -> None:
    assert expert_fits(profile([step(1, 64, 1.0), step(2, 64, 1.0), step(4, 64, 1.0)]), context=64) == []
