"""A load, what decides how it is served, and what became of it: inputs and outputs of a simulation by arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.costmodel.steps import StepWork
from swiftspec.scheduler.prefix_cache import PrefixCache, Segment
from swiftspec.scheduler.step_rules import StepRule

__all__ = ["ArrayRun", "Chains", "EngineUnderLoad", "Requests", "Turn"]

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class Turn(NamedTuple):
    """The next request of a conversation, and the seconds from the end of an answer until it is sent."""

    number: int
    think_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests in the order of their arrival.

    Parameters
    ----------
    arrival_s : array of float
        All 0 in a closed loop, whose clients send the next one when one ends.
    prompt_tokens, output_tokens : array of int
    segments : sequence of sequence of Segment
        Stretches of each prompt that others may have; none if empty.
    num_clients : int, optional
        Of a closed loop.
    turns : mapping of int to Turn
        By the number of a request: the next one of its conversation, which comes when it has ended. Its answer is then
        part of the last of the request's segments.
    transfer_s : float, optional
        Prompts are read elsewhere, and their caches are here so many seconds after a request's arrival. None: prompts
        are read here.
    """

    arrival_s: _Floats
    prompt_tokens: _Ints
    output_tokens: _Ints
    segments: Sequence[Sequence[Segment]] = ()
    num_clients: int | None = None
    turns: Mapping[int, Turn] = field(default_factory=dict)
    transfer_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Drafting in lockstep: all requests of a step draft together, then all are verified.

    Parameters
    ----------
    rows : int
        Of a verification: the draft tokens and one more.
    draft_s : callable
        Seconds of a round's draft forwards, from the requests and their mean context.
    tokens : array of int
        Tokens of recorded rounds, the bonus token included.
    cache_tokens : int, optional
        Tokens that the KV cache has room for beside the draft's weights and its own cache; as without it if None.
    reads_target : bool
        Whether the draft needs the target's hidden states of all the text.
    runs_ahead : bool
        Whether the next step can be formed while one runs.
    """

    rows: int
    draft_s: Callable[[int, float], float]
    tokens: _Ints
    cache_tokens: int | None = None
    reads_target: bool = False
    runs_ahead: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderLoad:
    """What decides how a load is served.

    Parameters
    ----------
    rule : StepRule
    step_tokens, max_requests : int
        Limits of a step, and of requests at once.
    cache_tokens : int
        Tokens that the KV cache has room for.
    runs_ahead : bool
        Whether the next step is formed while one runs.
    step_s : callable
        Seconds of a step, the engine's own time included.
    request_s, prompt_token_s, token_s : float
        Above the engine, as in `engines.constants`.
    prefixes : PrefixCache
    chains : Chains, optional
        Without, one token is decoded at a time.
    """

    rule: StepRule
    step_tokens: int
    max_requests: int
    cache_tokens: int
    runs_ahead: bool
    step_s: Callable[[StepWork], float]
    request_s: float
    prompt_token_s: float
    token_s: float
    prefixes: PrefixCache
    chains: Chains | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRun:
    """Seconds of every request as its client sees them, and counters.

    Parameters
    ----------
    arrival_s, queued_s, ttft_s, e2e_s : array of float
        Arrival on the run's clock; then, from arrival on: until the first step, until the first token, until the last.
    output_tokens : array of int
    preemptions : array of int
        How often each request gave way.
    num_steps : int
    mean_running : float
        Requests in a step, weighted by its time.
    busy_s, end_s : float
        Time in steps, and until the last one.
    hit_rate : float
        Share of the prompts' tokens that were in the prefix cache.
    draft_s : float
        Time in the draft's forwards.
    commits_s : sequence of sequence of float
        On the run's clock, when each request's tokens came, those of a round at once; empty where that is not kept.
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
    def num_preemptions(self) -> int:
        """Of all requests."""
        return int(self.preemptions.sum())

    @property
    def tpot_s(self) -> _Floats:
        """Seconds of every output token after the first; 0 for a request that has none."""
        later = np.maximum(self.output_tokens - 1, 1)
        return np.where(self.output_tokens > 1, (self.e2e_s - self.ttft_s) / later, 0.0)

    @property
    def falls_behind(self) -> float:
        """Seconds by which the queue's wait grows for every second of arrivals; about 0 in a load that is kept up."""
        if len(self.arrival_s) < 2 or self.arrival_s[-1] <= self.arrival_s[0]:
            return 0.0
        slope = np.polyfit(self.arrival_s, self.queued_s, 1)[0]
        return float(slope)
