"""Rows and columns that several verbs print."""

from swiftspec.artifacts.plan import Candidate
from swiftspec.reports.formatting import count, milliseconds, percent, provenance_shares, signed_percent, speed

__all__ = [
    "count",
    "milliseconds",
    "percent",
    "prediction_row",
    "provenance_shares",
    "shape_of",
    "signed_percent",
    "speed",
]

PREDICTION_COLUMNS = (
    "policy",
    "split",
    "tokens/s",
    "95 % interval",
    "round ms (p95)",
    "per round",
)


def prediction_row(candidate: Candidate) -> tuple[str, ...]:
    """Cells of a candidate and its prediction, for PREDICTION_COLUMNS."""
    prediction, figures = candidate.prediction, candidate.prediction.metrics.figures
    return (
        candidate.policy,
        candidate.split,
        speed(figures.tokens_per_s),
        f"{speed(prediction.tokens_per_s_low)} to {speed(prediction.tokens_per_s_high)}",
        f"{milliseconds(figures.round_s.median)} ({milliseconds(figures.round_s.p95)})",
        f"{figures.tokens_per_round:.2f}",
    )


def shape_of(candidate: Candidate) -> str:
    """Shape as text, `verify_rows=8, expand_rows=4`; empty if the policy has none."""
    return candidate.describe().partition(" (")[2].removesuffix(")")
