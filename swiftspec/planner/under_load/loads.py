"""A load as simulations take it, what became of it, and the closed loops that drafts are compared under."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.workload import RequestClass, Workload, WorkloadRequest
from swiftspec.files.document import Origin
from swiftspec.scheduler.prefix_cache import Segment

_LEAST_REQUESTS, REQUESTS_PER_CLIENT = 8, 3  # of a closed loop
# Of the lengths of outputs. Clients whose answers all have one length would stay in step in a simulation; real ones
# drift apart, as their times to the first token show: with lengths of +-10 % these are right.
UNEVEN = 0.1
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class Turn(NamedTuple):
    """The next request of a conversation, and the seconds from the end of an answer until it is sent."""

    number: int
    think_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests in the order of their arrival.

    arrival_s: all 0 in a closed loop, whose clients send the next one when one ends.
    segments: stretches of each prompt that others may have; none if empty.
    num_clients: of a closed loop.
    turns: by the number of a request: the next one of its conversation, which comes when it has ended. Its answer is
        then part of the last of the request's segments.
    transfer_s: prompts are read elsewhere, and their caches are here so many seconds after a request's arrival. None:
        prompts are read here.
    """

    arrival_s: _Floats
    prompt_tokens: _Ints
    output_tokens: _Ints
    segments: Sequence[Sequence[Segment]] = ()
    num_clients: int | None = None
    turns: Mapping[int, Turn] = field(default_factory=dict)
    transfer_s: float | None = None


def requests_of(workload: Workload, *, transfer_s: float | None = None) -> Requests:
    """The requests with what they share, and the turns that wait for answers. transfer_s: as of `Requests`."""
    turns = dict[int, Turn]()
    latest = dict[str, int]()  # request of every conversation
    for number, request in enumerate(workload.requests):
        if request.conversation is None:
            continue
        if request.think_time_s is not None:
            turns[latest[request.conversation]] = Turn(number, request.think_time_s)
        latest[request.conversation] = number
    return Requests(
        arrival_s=np.array([request.arrival_s for request in workload.requests]),
        prompt_tokens=np.array([request.prompt_tokens for request in workload.requests]),
        output_tokens=np.array([request.output_tokens for request in workload.requests]),
        segments=[request.segments for request in workload.requests],
        num_clients=workload.arrivals.num_clients if workload.is_closed else None,
        turns=turns,
        transfer_s=transfer_s,
    )


@lru_cache(maxsize=64)
def closed_loop_workload(clients: int, prompt_tokens: int, output_tokens: int) -> Workload:
    """Requests of clients that each send the next one when one ends.

    Outputs have lengths within a tenth of their mean, evenly spread and in a random order, both ends included.
    """
    count = max(_LEAST_REQUESTS, REQUESTS_PER_CLIENT * clients)
    least, most = math.ceil((1 - UNEVEN) * output_tokens), math.floor((1 + UNEVEN) * output_tokens)
    outputs = np.random.default_rng(0).permutation(np.linspace(least, most, count).round().astype(int)).tolist()
    return Workload(
        origin=Origin.here(),
        arrivals=Arrivals(process=Process.CLOSED, num_clients=clients),
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=prompt_tokens),
        output_tokens=Lengths(distribution=Distribution.UNIFORM, least=least, most=most),
        seed=0,
        classes=(RequestClass(name="client"),),
        requests=tuple(
            WorkloadRequest(arrival_s=0.0, prompt_tokens=prompt_tokens, output_tokens=tokens, class_name="client")
            for tokens in outputs
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRun:
    """Seconds of every request as its client sees them, and counters.

    arrival_s, queued_s, ttft_s, e2e_s: arrival on the run's clock; then, from arrival on: until the first step, until
        the first token, until the last.
    preemptions: how often each request gave way.
    mean_running: requests in a step, weighted by its time.
    busy_s, end_s: time in steps, and until the last one.
    hit_rate: share of the prompts' tokens that were in the prefix cache.
    draft_s: time in the draft's forwards.
    commits_s: on the run's clock, when each request's tokens came, those of a round at once; empty where that is not
        kept.
    """

    arrival_s: _Floats
    queued_s: _Floats
    ttft_s: _Floats
    e2e_s: _Floats
    output_tokens: _Ints
    preemptions: _Ints
    num_steps: int
    mean_running: float
    busy_s: float
    end_s: float
    hit_rate: float
    draft_s: float = 0.0
    commits_s: Sequence[Sequence[float]] = ()

    @property
    def tpot_s(self) -> _Floats:
        """Seconds of every output token after the first; 0 for a request that has none."""
        later = np.maximum(self.output_tokens - 1, 1)
        return np.where(self.output_tokens > 1, (self.e2e_s - self.ttft_s) / later, 0.0)

    @property
    def tok_s(self) -> float:
        """Output tokens per second of the whole run."""
        return float(self.output_tokens.sum()) / self.end_s

    @property
    def falls_behind(self) -> float:
        """Seconds by which the queue's wait grows for every second of arrivals; about 0 in a load that is kept up."""
        if len(self.arrival_s) < 2 or self.arrival_s[-1] <= self.arrival_s[0]:
            return 0.0
        slope = np.polyfit(self.arrival_s, self.queued_s, 1)[0]
        return float(slope)
