"""Metrics of many requests, simulated or measured, by the names of `vllm bench serve`, in seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Final, Self

import numpy as np
from pydantic import Field

from swiftspec.artifacts.workload import RequestClass
from swiftspec.files.document import Facts
from swiftspec.timing.timeline import Timeline

EVENTS: Final = "events"
RECORDED_ROUNDS: Final = "recorded rounds"


class Percentiles(Facts):
    """A distribution over requests, or over gaps between chunks."""

    mean: float
    std: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Of at least one value; zeros of none."""
        found = np.fromiter(values, dtype=float)
        if not found.size:
            return cls(mean=0.0, std=0.0, p50=0.0, p95=0.0, p99=0.0)
        p50, p95, p99 = np.percentile(found, (50, 95, 99)).tolist()
        return cls(mean=float(found.mean()), std=float(found.std()), p50=p50, p95=p95, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRecord:
    """One request as its caller saw it.

    arrival_s: when it came.
    queued_s: from then until it was admitted.
    commits_s: when its chunks came, in order; at least one.
    num_tokens: output tokens.
    num_rounds: verifications.
    class_name: class of the workload that it belongs to; empty if there are none.
    meets_limits: whether it kept all latency limits of its class.
    """

    arrival_s: float
    queued_s: float
    commits_s: tuple[float, ...]
    num_tokens: int
    num_rounds: int
    num_preemptions: int = 0
    class_name: str = ""
    meets_limits: bool = True

    @classmethod
    def of(cls, timeline: Timeline, of_class: RequestClass, *, begun_s: float, num_preemptions: int = 0) -> Self:
        """Record of a timeline that begins with its arrival."""
        record = cls(
            arrival_s=timeline.start_s,
            queued_s=begun_s - timeline.start_s,
            commits_s=tuple(span.end_s for span in timeline.commits),
            num_tokens=timeline.num_tokens,
            num_rounds=len(timeline.verifications_s),
            num_preemptions=num_preemptions,
        )
        return record.judged(of_class)

    def judged(self, of_class: RequestClass) -> Self:
        """The record, with whether it keeps the limits of its class."""
        pairs = ((self.ttft_s, of_class.ttft_s), (self.tpot_s, of_class.tpot_s))
        meets_limits = all(limit_s is None or found_s <= limit_s for found_s, limit_s in pairs)
        return replace(self, class_name=of_class.name, meets_limits=meets_limits)

    @property
    def ttft_s(self) -> float:
        """Arrival to first token."""
        return self.commits_s[0] - self.arrival_s

    @property
    def e2e_s(self) -> float:
        """Arrival to last token."""
        return self.commits_s[-1] - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """(E2E - TTFT) / (n - 1); 0 for a single token."""
        return (self.e2e_s - self.ttft_s) / (self.num_tokens - 1) if self.num_tokens > 1 else 0.0


class LoadMetrics(Facts):
    """Figures of a run.

    completed, refused: requests.
    duration_s: first arrival to last token.
    request_throughput: completed requests per second.
    output_throughput: output tokens per second.
    request_goodput: completed requests per second that kept their limits.
    attainment: share of the requests that kept their limits, by class.
    ttft_s, tpot_s, itl_s, e2el_s, queued_s: first token, time per output token, gaps between chunks, last token, and
        wait for admission.
    """

    completed: int
    refused: int
    duration_s: float
    request_throughput: float
    output_throughput: float
    request_goodput: float
    attainment: dict[str, float]
    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    e2el_s: Percentiles
    queued_s: Percentiles
    tokens_per_round: float
    num_preemptions: int


class CacheUse(Facts):
    """The KV cache of an engine with a prefix cache: its tokens, and the share of the prompts' tokens found in it."""

    tokens: int = Field(ge=1)
    hit_rate: float = Field(ge=0, le=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """Result of a simulation under load.

    records: completed requests, in order of arrival.
    timelines: of the same requests.
    mean_batch: requests per step of the target, by time.
    busy_fraction: share of the time in which the target computed.
    draft_share, verify_share: shares of the time in which the models computed; their devices' mean where there are
        several groups.
    method: how it was simulated: one of `EVENTS` and `RECORDED_ROUNDS`, which have no timelines.
    num_repeated: requests that begin with a traced prompt that an earlier one had.
    cache: of another engine than this package's, which has no prefix cache.
    """

    metrics: LoadMetrics
    records: tuple[ServedRecord, ...]
    timelines: tuple[Timeline, ...]
    mean_batch: float
    busy_fraction: float
    draft_share: float = 0.0
    verify_share: float = 0.0
    method: str = EVENTS
    num_repeated: int = 0
    cache: CacheUse | None = None

    @property
    def attained(self) -> float:
        """Share of all requests, refused ones included, that kept their limits."""
        return sum(record.meets_limits for record in self.records) / (self.metrics.completed + self.metrics.refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """A workload as it ran.

    records: requests that ended well, in order of arrival.
    timelines, prompt_tokens: of the same requests, as far as they are known: a timeline and its prompt's length.
    late_s: longest delay of a submission after its arrival.
    """

    metrics: LoadMetrics
    records: tuple[ServedRecord, ...]
    timelines: tuple[Timeline, ...]
    prompt_tokens: tuple[int, ...]
    late_s: float


def load_metrics(records: Sequence[ServedRecord], *, refused: int = 0) -> LoadMetrics:
    """Metrics of at least one request."""
    duration_s = max(record.commits_s[-1] for record in records) - min(record.arrival_s for record in records)
    num_tokens, num_rounds = sum(record.num_tokens for record in records), sum(record.num_rounds for record in records)
    kept: dict[str, list[bool]] = {}
    for record in sorted(records, key=attrgetter("class_name")):
        kept.setdefault(record.class_name, []).append(record.meets_limits)
    return LoadMetrics(
        completed=len(records),
        refused=refused,
        duration_s=duration_s,
        request_throughput=len(records) / duration_s,
        output_throughput=num_tokens / duration_s,
        request_goodput=sum(record.meets_limits for record in records) / duration_s,
        attainment={name: sum(held) / len(held) for name, held in kept.items()},
        ttft_s=Percentiles.of(record.ttft_s for record in records),
        tpot_s=Percentiles.of(record.tpot_s for record in records if record.num_tokens > 1),
        itl_s=Percentiles.of(right - left for record in records for left, right in pairwise(record.commits_s)),
        e2el_s=Percentiles.of(record.e2e_s for record in records),
        queued_s=Percentiles.of(record.queued_s for record in records),
        tokens_per_round=num_tokens / max(1, num_rounds),
        num_preemptions=sum(record.num_preemptions for record in records),
    )
