"""Figures of an engine's finished requests, which are not kept."""

from dataclasses import dataclass
from enum import StrEnum


class DraftState(StrEnum):
    """State of the processes that draft."""

    NONE = "none"  # the policy needs none
    READY = "ready"
    STARTING = "starting"  # again: the target decodes alone
    GONE = "gone"  # and no restart is left


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """An engine at one moment.

    num_running, num_waiting: requests.
    max_running: requests that run at once, at most.
    cache_usage: share of the key-value caches that running requests hold.
    num_preemptions, num_refused: requests that gave way to others, and that found no place to wait, so far.
    failure: what ended the target, after which every request fails; empty while it runs.
    """

    num_running: int
    num_waiting: int
    max_running: int
    cache_usage: float
    num_preemptions: int
    num_refused: int
    draft: DraftState
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Figures of all finished requests.

    prompt_tokens, tokens: tokens of the prompts and of the outputs.
    tokens_per_s: output tokens over the seconds from each request to its last token; 0 before the first request.
    tokens_per_round: output tokens per verification; 0 before the first request.
    losses: how often the target continued without its draft.
    restarts: how often the draft was restarted.
    """

    requests: int
    prompt_tokens: int
    tokens: int
    tokens_per_s: float
    tokens_per_round: float
    losses: int
    restarts: int
