"""Predictions of a plan that was made for many requests, and what they assume."""

from collections.abc import Mapping
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import EVENTS, CacheUse, LoadMetrics, SimulatedLoad
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.workload import Workload
from swiftspec.files.document import Basis, Facts, Share, file_sha256


class LoadPrediction(Facts):
    """Predicted figures of one candidate under a load, as `SimulatedLoad` has them.

    candidate: `swiftspec 7+1 (verify_rows=16)`.
    tokens_per_s: speed of a single request, which has all devices to itself.
    num_blocks: blocks of the caches for which its devices have memory; None if that is not known.
    """

    candidate: str
    tokens_per_s: float = Field(gt=0)
    attained: Share
    metrics: LoadMetrics
    mean_batch: float = Field(ge=0)
    busy_fraction: Share
    num_blocks: int | None = Field(default=None, ge=1, exclude_if=lambda found: found is None)
    method: str = Field(default=EVENTS, exclude_if=lambda method: method == EVENTS)
    cache: CacheUse | None = Field(default=None, exclude_if=lambda found: found is None)

    @classmethod
    def of(cls, load: SimulatedLoad, *, candidate: str, tokens_per_s: float, num_blocks: int | None = None) -> Self:
        same = ("attained", "metrics", "mean_batch", "busy_fraction", "method", "cache")
        found = {name: getattr(load, name) for name in same}
        return cls(candidate=candidate, tokens_per_s=tokens_per_s, num_blocks=num_blocks, **found)

    def score(self, goal: Goal) -> tuple[bool, float, float]:
        """Sort key, as `Goal.score`."""
        return goal.score(attained=self.attained, goodput=self.metrics.request_goodput, e2e_s=self.metrics.e2el_s.mean)


class DecodePool(Facts):
    """A pool that decodes requests whose prompts were read elsewhere.

    transfer_s: from a request's arrival, when its prompt has been read, until its cache is in the pool.
    prompt_tokens_per_s: tokens of all prompts, which are read whole, by the load's rate. prefill_tokens_per_s: what one
    instance on as many devices reads that does nothing else.
    """

    transfer_s: float = Field(ge=0)
    prompt_tokens_per_s: float = Field(gt=0)
    prefill_tokens_per_s: float = Field(gt=0)

    @property
    def num_prefill_instances(self) -> int:
        """Instances that read prompts as fast as they come."""
        return ceil(self.prompt_tokens_per_s / self.prefill_tokens_per_s)


class UnderLoad(Facts):
    """A load, what was assumed of it, and the predicted figures of every candidate of a plan.

    arrivals: process of the requests' arrivals, `poisson:6`.
    num_requests, num_simulated: requests of the workload, and the number of these, from the first on, that were
        simulated.
    seed: of the simulations; all candidates had the same requests.
    num_candidates: options that were simulated under the load.
    predictions: by policy, of each candidate of the plan.
    single_request: of the option that would have been chosen for one request at a time.
    engine: the engine that will serve and the limits of its steps, a clause; empty for this package's own.
    repeated_share: share of the prompts' tokens that earlier requests had.
    """

    workload: Basis
    arrivals: str
    num_requests: int = Field(ge=1)
    num_simulated: int = Field(ge=1)
    seed: int = Field(ge=0)
    goal: Goal
    options: LoadOptions
    num_candidates: int = Field(ge=1)
    predictions: dict[str, LoadPrediction]
    single_request: LoadPrediction
    engine: str = Field(default="", exclude_if=lambda engine: not engine)
    repeated_share: float = Field(default=0.0, ge=0, le=1, exclude_if=lambda share: not share)
    decode_pool: DecodePool | None = Field(default=None, exclude_if=lambda pool: pool is None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_simulated > self.num_requests:
            raise ValueError(f"num_simulated is {self.num_simulated}; num_requests is {self.num_requests}")
        return self

    def options_of(self, policy: str) -> LoadOptions:
        """The scheduler's limits for a policy, with the cache that its devices have room for."""
        return self.options.with_room(self.predictions[policy].num_blocks)

    @property
    def ranked(self) -> Mapping[str, LoadPrediction]:
        """Predictions by policy, best first."""
        ordered = sorted(self.predictions.items(), key=lambda item: item[1].score(self.goal), reverse=True)
        return dict(ordered)

    def output_tokens_per_s(self, prediction: LoadPrediction) -> float:
        """Output tokens of all requests: of clients while all of them ask, else from first arrival to last token."""
        metrics, (process, _, clients) = prediction.metrics, self.arrivals.partition(":")
        if process == "closed" and clients.isdigit():
            tokens = metrics.output_throughput / metrics.request_throughput
            return int(clients) * tokens / metrics.e2el_s.mean
        return metrics.output_throughput


def workload_sha256(workload: Workload, path: Path | None = None) -> str:
    """SHA-256 of a workload's file; of the file that `save` would write if there is none, or it is a pipe."""
    return file_sha256(path) if path is not None and path.is_file() else sha256(workload.to_bytes()).hexdigest()
