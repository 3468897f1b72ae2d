"""Sweep: latencies of a plan's policies over rates, the fitted law, and when speculation pays; `study latency`."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from swiftspec.artifacts.distributions import Arrivals, Process
from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.files.document import Document, Facts

_Seconds = Annotated[float, Field(ge=0)]
_LEAST_POINTS = 3  # besides the two closed loops


class CurveKind(StrEnum):
    """Origin of a curve: simulated, simulated with the latencies during the measurement, or measured."""

    PREDICTED = "predicted"
    RETIMED = "re-timed"
    MEASURED = "measured"


class SweepPoint(Facts):
    """One run.

    rate: requests per second that came; in a closed loop, that its clients can complete. metrics: of all requests; in a
    closed loop, of those that ended while every client was busy. late_s: longest delay of a submission, if measured.
    """

    arrivals: Arrivals
    num_requests: int = Field(ge=1)
    rate: float = Field(gt=0)
    metrics: LoadMetrics
    late_s: _Seconds = 0.0

    @property
    def e2e_s(self) -> float:
        """Mean end-to-end latency."""
        return self.metrics.e2el_s.mean


class FittedLaw(Facts):
    """Mean latency C1 / (1 - RPS C2) with the least squared errors, and the share of the variance it explains."""

    c1_s: float = Field(gt=0)
    c2_s: _Seconds
    r2: float = Field(le=1)


class PartCost(Facts):
    """A part of a request. number: of it, in a request. c1_s: of one, alone. c2_s: added by each further request."""

    part: str
    number: float = Field(ge=0)
    c1_s: float
    c2_s: float


class DerivedLaw(Facts):
    """C1 and C2 from the rounds of the two closed loops, without a fit to latencies; their parts add up to them."""

    c1_s: float = Field(gt=0)
    c2_s: _Seconds
    parts: tuple[PartCost, ...]


class Curve(Facts):
    """One policy over loads.

    synchronous: one client. saturating: as many as may run at once. points: Poisson arrivals, by rate. derived: None if
    rounds could not be told apart.
    """

    synchronous: SweepPoint
    points: tuple[SweepPoint, ...] = Field(min_length=_LEAST_POINTS)
    saturating: SweepPoint
    fitted: FittedLaw
    derived: DerivedLaw | None = None

    @model_validator(mode="after")
    def _closed_and_open(self) -> Self:
        for name, expected in (("synchronous", True), ("saturating", True), ("points", False)):
            value = getattr(self, name)
            for point in value if isinstance(value, tuple) else (value,):
                if (point.arrivals.process is Process.CLOSED) != expected:
                    raise ValueError(f"{name} has arrivals {point.arrivals}; expected {_EXPECTED[expected]}")
        return self


_EXPECTED = {True: "a closed loop", False: "open arrivals"}


class SweptPolicy(Facts):
    """A candidate, and its curves by their origin.

    num_draft_tokens: of a round, if the policy drafts a chain. rows: of a request in a forward of the target, at most.
    """

    policy: str
    candidate: str
    num_draft_tokens: int | None = Field(default=None, ge=1)
    rows: int = Field(ge=1)
    curves: dict[CurveKind, Curve] = Field(min_length=1)

    @property
    def curve(self) -> Curve:
        """The measured curve, or the predicted one."""
        return self.curves.get(CurveKind.MEASURED) or next(iter(self.curves.values()))


class SweepComparison(Facts):
    """A candidate against plain decoding, by their fitted laws.

    c1_ratio, c2_ratio: C1 and C2 over those of plain decoding. break_even_load: share of the plain server's saturation
    1 / C2 at which both are equally fast, and break_even_rate the same in requests per second; None without any.
    """

    candidate: str
    num_draft_tokens: int | None = None
    kind: CurveKind
    c1_ratio: float = Field(gt=0)
    c2_ratio: _Seconds
    break_even_load: float | None = Field(default=None, ge=0, lt=1)
    break_even_rate: float | None = Field(default=None, ge=0)


class BestLength(Facts):
    """The number of draft tokens with the lowest latency at a load of the plain server; 0 is plain decoding.

    latencies_s: of every number, by the fitted laws; None where it cannot serve the rate.
    """

    load: float = Field(ge=0, lt=1)
    rate: float = Field(ge=0)
    num_draft_tokens: int = Field(ge=0)
    latencies_s: dict[int, float | None]


class Sweep(Document):
    """Latency under load of a plan's policy, of plain decoding, and of other numbers of draft tokens.

    Attributes
    ----------
    plan_sha256 : str, optional
        None if a server without a plan was swept.
    workload_sha256 : str
        Of the requests, whose arrivals were replaced.
    prompt_tokens, output_tokens : str
        Their distributions, in words.
    num_requests, max_running : int
    experts, active_experts : int, optional
        Of a sparse target.
    url : str, optional
        Address of the server.
    policies : tuple of SweptPolicy
        Plain decoding first, if it was swept.
    comparisons : tuple of SweepComparison
    best_lengths : tuple of BestLength
        By load, if several numbers of draft tokens were swept.
    """

    schema_name: ClassVar[str] = "swiftspec.sweep"
    schema_version: ClassVar[int] = 1

    plan_sha256: str | None
    workload_sha256: str
    prompt_tokens: str
    output_tokens: str
    num_requests: int = Field(ge=1)
    max_running: int = Field(ge=2)
    experts: int | None = Field(default=None, ge=1)
    active_experts: int | None = Field(default=None, ge=1)
    url: str | None = None
    policies: tuple[SweptPolicy, ...] = Field(min_length=1)
    comparisons: tuple[SweepComparison, ...] = ()
    best_lengths: tuple[BestLength, ...] = ()
