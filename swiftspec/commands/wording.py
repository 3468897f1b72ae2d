"""How figures are put into words: milliseconds, percentages and speeds exist only here and on the way out."""

from collections.abc import Mapping

from swiftspec.plan import Candidate
from swiftspec.profile import Provenance

__all__ = ["milliseconds", "percent", "prediction_row", "provenance_shares", "signed_percent", "speed"]

PREDICTION_COLUMNS = (
    "policy",
    "split, shape",
    "tokens/s",
    "95 % interval",
    "round ms (p95)",
    "tokens/round",
    "of light",
)


def milliseconds(seconds: float) -> str:
    """Two or three significant figures."""
    value = seconds * 1e3
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def signed_percent(share: float) -> str:
    return f"{share * 100:+.1f} %"


def speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}"


def provenance_shares(shares: Mapping[Provenance, float]) -> str:
    """`measured 93 %, interpolated 7 %`, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{provenance} {share * 100:.0f} %" for provenance, share in ordered if share >= 0.005)


def prediction_row(candidate: Candidate) -> tuple[str, ...]:
    """A candidate and what is expected of it, under PREDICTION_COLUMNS."""
    prediction, metrics = candidate.prediction, candidate.prediction.metrics
    figures = metrics.figures
    name, _, rest = candidate.describe().partition(" ")
    return (
        name,
        rest,
        speed(figures.tokens_per_s),
        f"{speed(prediction.tokens_per_s_low)} to {speed(prediction.tokens_per_s_high)}",
        f"{milliseconds(figures.round_s.median)} ({milliseconds(figures.round_s.p95)})",
        f"{figures.tokens_per_round:.2f}",
        percent(metrics.light_fraction),
    )
