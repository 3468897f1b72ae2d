"""Report: predicted and measured figures, policy by policy. No torch here."""

from collections.abc import Sequence
from statistics import median
from typing import ClassVar

from pydantic import Field

from swiftspec.artifacts.metrics import Figures, Metrics
from swiftspec.files.document import Document, Facts, Spread


class PolicyReport(Facts):
    """Figures of one policy.

    error: predicted / measured - 1, figure by figure. error_margin: half the 95 % confidence interval of the error in
    tokens_per_s over the choice of traced and measured prompts; None for a single prompt. repeats: tokens/s of each
    measured repetition. seconds_per_token: per repetition and prompt, the time from request to last token over the
    number of output tokens; empty in older reports. predicted_acceptance: as `Metrics.acceptance`, of the plan.
    retimed: the prediction repeated with the latencies during this measurement. retraced: also with a trace of the
    measured texts. None if not computed.
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
    seconds_per_token: tuple[tuple[float, ...], ...] = ()
    predicted_acceptance: tuple[float, ...] = ()
    retimed: Figures | None = None
    retraced: Figures | None = None

    @property
    def retimed_error(self) -> float | None:
        """Error of tokens_per_s that remains without the machine's change since it was profiled."""
        return None if self.retimed is None else relative_error(self.retimed, self.measured).tokens_per_s

    @property
    def retraced_error(self) -> Figures | None:
        """Error that remains when machine and text are both accounted for: the simulator's."""
        return None if self.retraced is None else relative_error(self.retraced, self.measured)


class Drift(Facts):
    """Latency drift of one kind of forward: time while the policies were measured, over time in the profile.

    factor: the median of `by_rows`, which is empty in older files.
    """

    role: str
    phase: str
    degree: int
    peer_busy: bool
    cold: bool = False
    ranks: int = 1
    factor: float
    by_rows: dict[int, float] = Field(default_factory=dict, exclude_if=lambda factors: not factors)


class Report(Document):
    """Predicted and measured figures of the policies of a plan; what `validate` returns.

    Attributes
    ----------
    plan_sha256 : str
        SHA-256 of the plan's file.
    chosen : str
        The policy that the plan chose.
    num_prompts : int
    policies : tuple of PolicyReport
        Predicted, measured, and the relative error of each figure.
    regret : float
        Measured tokens/s of the best policy over those of the chosen one, minus 1; 0 if the choice was right.
    drift : tuple of Drift
        Change since the profile of forwards that were timed again between the requests.

    Examples
    --------
    >>> report = swiftspec.Report.load("report.json")
    >>> report.median_error  # of the predicted tokens/s, over policies
    0.0...
    """

    schema_name: ClassVar[str] = "swiftspec.report"
    schema_version: ClassVar[int] = 1

    plan_sha256: str
    chosen: str
    num_prompts: int
    policies: tuple[PolicyReport, ...]
    regret: float
    drift: tuple[Drift, ...] = ()

    @property
    def rank_correlation(self) -> float:
        """Kendall's tau between the predicted and the measured order of policies; 1 for a single one."""
        return self._rank_correlation([policy.predicted for policy in self.policies])

    @property
    def median_error(self) -> float:
        """Median absolute error of tokens_per_s over policies."""
        return median(abs(policy.error.tokens_per_s) for policy in self.policies)

    @property
    def text_error(self) -> float | None:
        """Median error of tokens per round over the policies that draft: how much easier the traced text was."""
        errors = [policy.error.tokens_per_round for policy in self.policies if policy.policy != "autoregressive"]
        return median(errors) if errors else None

    @property
    def retraced_agreement(self) -> tuple[float, float] | None:
        """Kendall's tau and median error of the retraced predictions; None unless all policies have one."""
        again = [policy.retraced for policy in self.policies if policy.retraced is not None]
        errors = [abs(policy.retraced_error.tokens_per_s) for policy in self.policies if policy.retraced_error]
        return (self._rank_correlation(again), median(errors)) if len(again) == len(self.policies) else None

    def _rank_correlation(self, predicted: Sequence[Figures]) -> float:
        """Kendall's tau; 1 for a single policy."""
        from scipy.stats import kendalltau  # takes over half a second, and most commands do not need it

        speeds = [figures.tokens_per_s for figures in predicted]
        measured = [policy.measured.tokens_per_s for policy in self.policies]
        return float(kendalltau(speeds, measured).statistic) if len(speeds) > 1 else 1.0


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
