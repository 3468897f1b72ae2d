"""Loads as they were: predicted beside measured (`validate --load`), and as clients saw them (`loadtest`)."""

from statistics import median
from typing import ClassVar

from pydantic import Field

from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.artifacts.load_options import ReplicaCounts
from swiftspec.files.document import Document, Facts


class LoadErrors(Facts):
    """Predicted over measured, minus 1: of the means, and of the output tokens per second."""

    ttft: float
    tpot: float
    e2el: float
    output_throughput: float

    @classmethod
    def of(cls, predicted: LoadMetrics, measured: LoadMetrics) -> "LoadErrors":
        return cls(
            ttft=predicted.ttft_s.mean / measured.ttft_s.mean - 1,
            tpot=predicted.tpot_s.mean / measured.tpot_s.mean - 1 if measured.tpot_s.mean else 0.0,
            e2el=predicted.e2el_s.mean / measured.e2el_s.mean - 1,
            output_throughput=predicted.output_throughput / measured.output_throughput - 1,
        )


class PolicyLoad(Facts):
    """One policy under the load.

    retimed: the prediction repeated with the step latencies during the measurement; None if too few steps were seen.
    retraced: repeated with these and with the acceptance that the server counted, too. time_factor: step times of
    another engine's server then, over those of its profile. survival, measured_survival: shares of the drafts of which
    at least 1, 2, .. tokens are accepted. All four are of other engines' servers only, and absent from other files.
    late_s: longest delay of a submission after its arrival. mean_batch: requests in a target's step, by time, measured.
    A server that keeps no timelines tells of no steps.
    """

    policy: str
    candidate: str
    predicted: LoadMetrics
    measured: LoadMetrics
    retimed: LoadMetrics | None
    late_s: float = Field(ge=0)
    mean_batch: float | None = Field(ge=0)
    retraced: LoadMetrics | None = Field(default=None, exclude_if=lambda metrics: metrics is None)
    time_factor: float | None = Field(default=None, gt=0, exclude_if=lambda factor: factor is None)
    survival: tuple[float, ...] = Field(default=(), exclude_if=lambda shares: not shares)
    measured_survival: tuple[float, ...] = Field(default=(), exclude_if=lambda shares: not shares)

    @property
    def error(self) -> LoadErrors:
        return LoadErrors.of(self.predicted, self.measured)

    @property
    def retimed_error(self) -> LoadErrors | None:
        return LoadErrors.of(self.retimed, self.measured) if self.retimed else None

    @property
    def retraced_error(self) -> LoadErrors | None:
        return LoadErrors.of(self.retraced, self.measured) if self.retraced else None


class PredictedLoads(Document):
    """Predicted figures of a plan's policies under a workload, written before anything is measured.

    plan_sha256, workload_sha256: as in `LoadReport`. policies: figures by policy.
    """

    schema_name: ClassVar[str] = "swiftspec.predicted_loads"
    schema_version: ClassVar[int] = 1

    plan_sha256: str
    workload_sha256: str
    policies: dict[str, LoadMetrics] = Field(min_length=1)


class LoadReport(ReplicaCounts, Document):
    """Predicted and measured figures of a plan's policies under a workload.

    plan_sha256, workload_sha256: SHA-256 of the two documents. predictions_sha256: of the predictions, which were
    written before the first request was sent; absent from the file where they were not. workload: the arrivals, in
    words.
    """

    schema_name: ClassVar[str] = "swiftspec.load_report"
    schema_version: ClassVar[int] = 1

    plan_sha256: str
    workload_sha256: str
    predictions_sha256: str | None = Field(default=None, exclude_if=lambda digest: digest is None)
    workload: str
    num_requests: int = Field(ge=1)
    max_running: int = Field(ge=1)
    policies: tuple[PolicyLoad, ...] = Field(min_length=1)

    def median_error(self, figure: str, *, retimed: bool = False) -> float | None:
        """Median absolute error of a field of `LoadErrors` over policies; None unless all have it."""
        errors = [policy.retimed_error if retimed else policy.error for policy in self.policies]
        found = [abs(getattr(error, figure)) for error in errors if error is not None]
        return median(found) if len(found) == len(errors) else None


class SentRequest(Facts):
    """One request. sent_s, chunks_s: when it was sent and its chunks came, after the start. error: why it failed."""

    sent_s: float
    chunks_s: tuple[float, ...]
    num_tokens: int = Field(ge=0)
    status: int = Field(ge=0)
    error: str = ""


class LoadTest(Document):
    """Figures of a server under a workload.

    url, model: the server, and the model as it names it.
    workload_sha256, workload: SHA-256 of the workload, and its arrivals in words.
    metrics: of the requests that ended well; rounds are chunks.
    tokens_per_iteration: output tokens after a request's first chunk over chunks after it, as GuideLLM counts them.
    failures: number of requests that failed, by sentence; without those that were refused.
    late_s: longest delay of a submission after its arrival.
    requests: in the order of the workload.
    """

    schema_name: ClassVar[str] = "swiftspec.load_test"
    schema_version: ClassVar[int] = 1

    url: str
    model: str
    workload_sha256: str
    workload: str
    metrics: LoadMetrics
    tokens_per_iteration: float = Field(ge=0)
    failures: dict[str, int]
    late_s: float = Field(ge=0)
    requests: tuple[SentRequest, ...] = Field(min_length=1)
