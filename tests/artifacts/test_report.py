from pathlib import Path

import pytest

from swiftspec.artifacts.metrics import Figures, Metrics
from swiftspec.artifacts.report import PolicyReport, Report, relative_error
from swiftspec.files.document import Origin, Spread

ORIGIN = Origin(command="swiftspec validate", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")


def figures(tokens_per_s: float, median: float, p95: float, tokens_per_round: float) -> Figures:
    return Figures(tokens_per_s=tokens_per_s, round_s=Spread(median=median, p95=p95), tokens_per_round=tokens_per_round)


PREDICTED, MEASURED = figures(110.0, 0.03, 0.05, 3.0), figures(100.0, 0.04, 0.05, 2.0)


def test_error_is_signed_and_relative_to_what_was_measured() -> None:
    error = relative_error(PREDICTED, MEASURED)
    assert error.tokens_per_s == pytest.approx(0.1)
    assert error.round_s.median == pytest.approx(-0.25)
    assert error.round_s.p95 == 0.0
    assert error.tokens_per_round == 0.5


def test_perfect_prediction_has_no_error() -> None:
    assert relative_error(MEASURED, MEASURED) == figures(0.0, 0.0, 0.0, 0.0)


def test_requests_without_a_round_have_no_error_in_it() -> None:
    error = relative_error(figures(150.0, 0.0, 0.0, 0.0), figures(100.0, 0.0, 0.0, 0.0))
    assert error == figures(0.5, 0.0, 0.0, 0.0)


METRICS = Metrics(
    figures=MEASURED,
    num_tokens=200,
    rounds=100,
    ttft_s=0.1,
    tpot_s=0.01,
    overlap_fraction=0.8,
    verify_s=0.025,
    tail_s=Spread(median=1e-5, p95=2e-5),
    hit_fraction=0.5,
    mean_round_s=0.03,
    target_busy=0.9,
    draft_busy=0.7,
    wasted_draft=0.4,
)


def policy_report(predicted: Figures, measured: Figures) -> PolicyReport:
    return PolicyReport(
        policy="swiftspec",
        candidate="swiftspec 1+1",
        predicted=predicted,
        measured=measured,
        error=relative_error(predicted, measured),
        error_margin=0.08,
        measured_metrics=METRICS,
        repeats=(99.0, 100.0, 101.0),
        identical_output=True,
    )


def report(*policies: PolicyReport) -> Report:
    return Report(origin=ORIGIN, plan_sha256="0" * 64, chosen="swiftspec", num_prompts=3, policies=policies, regret=0.0)


def test_agreement_is_of_the_order_and_of_the_middle_error() -> None:
    def compared(*speeds: tuple[float, float]) -> Report:
        sides = [[figures(speed, 0.03, 0.05, 3.0) for speed in pair] for pair in speeds]
        return report(*[policy_report(*pair) for pair in sides])

    assert compared((1.0, 10.0), (2.0, 20.0), (3.0, 30.0)).rank_correlation == pytest.approx(1.0)
    assert compared((3.0, 10.0), (2.0, 20.0), (1.0, 30.0)).rank_correlation == pytest.approx(-1.0)
    assert compared((1.0, 10.0)).rank_correlation == 1.0
    assert compared((90.0, 100.0), (130.0, 100.0), (80.0, 100.0)).median_error == pytest.approx(0.2)


def test_saved_report_loads_as_it_was(tmp_path: Path) -> None:
    saved = report(policy_report(PREDICTED, MEASURED))
    saved.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == saved
