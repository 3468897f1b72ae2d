"""Rows and columns that several verbs print."""

from swiftspec.plan import Candidate
from swiftspec.wording import count, milliseconds, percent, provenance_shares, signed_percent, speed

__all__ = ["count", "milliseconds", "percent", "prediction_row", "provenance_shares", "signed_percent", "speed"]

PREDICTION_COLUMNS = (
    "policy",
    "split",
    "tokens/s",
    "95 % interval",
    "round ms (p95)",
    "tokens/round",
    "of light",
    "shape",
)


def prediction_row(candidate: Candidate) -> tuple[str, ...]:
    """A candidate and what is expected of it, under PREDICTION_COLUMNS."""
    prediction, metrics = candidate.prediction, candidate.prediction.metrics
    figures = metrics.figures
    # Several target groups verify at once, so one group's speed is no bound.
    light = percent(metrics.light_fraction) if candidate.build().target_groups == 1 else "-"
    return (
        candidate.policy,
        candidate.split,
        speed(figures.tokens_per_s),
        f"{speed(prediction.tokens_per_s_low)} to {speed(prediction.tokens_per_s_high)}",
        f"{milliseconds(figures.round_s.median)} ({milliseconds(figures.round_s.p95)})",
        f"{figures.tokens_per_round:.2f}",
        light,
        candidate.describe().partition(" (")[2].removesuffix(")"),
    )
