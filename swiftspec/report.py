"""Report: predicted beside measured, policy by policy. No torch here."""

from statistics import median
from typing import ClassVar

from scipy.stats import kendalltau

from swiftspec.documents import Document, Facts, Spread
from swiftspec.timeline import Figures, Metrics

__all__ = ["PolicyReport", "Report", "relative_error"]


class PolicyReport(Facts):
    """One policy.

    error: predicted / measured - 1, figure by figure. error_margin: half the 95 % confidence interval of the error in
    tokens_per_s, as far as it stems from which prompts were traced and which were measured; None for a single prompt.
    repeats: tokens/s of each measured repetition.
    """

    policy: str
    candidate: str
    predicted: Figures
    measured: Figures
    error: Figures
    error_margin: float | None
    measured_metrics: Metrics
    repeats: tuple[float, ...]
    identical_output: bool


class Report(Document):
    """A validation. regret: best measured tokens_per_s over the chosen plan's measured tokens_per_s, minus 1."""

    schema_name: ClassVar[str] = "swiftspec.report"
    schema_version: ClassVar[int] = 1

    plan_sha256: str
    chosen: str
    num_prompts: int
    policies: tuple[PolicyReport, ...]
    regret: float

    @property
    def rank_correlation(self) -> float:
        """Kendall's tau between the predicted and the measured order of policies; 1 for a single one."""
        predicted = [policy.predicted.tokens_per_s for policy in self.policies]
        measured = [policy.measured.tokens_per_s for policy in self.policies]
        return float(kendalltau(predicted, measured).statistic) if len(measured) > 1 else 1.0

    @property
    def median_error(self) -> float:
        """Of tokens_per_s, over policies, without its sign."""
        return median(abs(policy.error.tokens_per_s) for policy in self.policies)


def relative_error(predicted: Figures, measured: Figures) -> Figures:
    """predicted / measured - 1 for every figure; 0 where the measured one is 0, as without any round."""

    def error(left: float, right: float) -> float:
        return left / right - 1 if right else 0.0

    return Figures(
        tokens_per_s=error(predicted.tokens_per_s, measured.tokens_per_s),
        tokens_per_round=error(predicted.tokens_per_round, measured.tokens_per_round),
        round_s=Spread(
            median=error(predicted.round_s.median, measured.round_s.median),
            p95=error(predicted.round_s.p95, measured.round_s.p95),
        ),
    )
