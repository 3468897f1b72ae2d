"""The bundled pair's plan, which `make bench` has just made, holds: predicted against measured, policy by policy.

The bounds are for a quiet machine. A prediction is judged as it would have been with the forwards and the texts of the
measurement: what the machine and the choice of prompts changed since is not the simulator's error.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from swiftspec.artifacts.report import PolicyReport, Report
from tools.checks.predictions import MOST_ERROR, MOST_MEDIAN

pytestmark = pytest.mark.bench

MOST_REGRET = 0.10


def test_prediction_holds(swiftspec_policy: PolicyReport, benchmark: BenchmarkFixture) -> None:
    error = swiftspec_policy.retraced_error
    assert error is not None
    assert abs(error.tokens_per_s) <= MOST_ERROR


def test_predictions_hold_in_the_median_and_the_choice_is_right(swiftspec_report: Report) -> None:
    agreement = swiftspec_report.retraced_agreement
    assert agreement is not None
    _, median_error = agreement
    assert median_error <= MOST_MEDIAN
    assert swiftspec_report.regret <= MOST_REGRET
