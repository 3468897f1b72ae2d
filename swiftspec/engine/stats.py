"""Figures of an engine's finished requests, which are not kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swiftspec.artifacts.timeline import Totals

if TYPE_CHECKING:
    from swiftspec.engine.running import Generation

__all__ = ["Past", "Stats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Figures of all finished requests.

    Parameters
    ----------
    requests : int
    prompt_tokens, tokens : int
        Tokens of the prompts and of the outputs.
    tokens_per_s : float
        Output tokens over the seconds from each request to its last token; 0 before the first request.
    tokens_per_round : float
        Output tokens per verification; 0 before the first request.
    losses : int
        How often the target continued without its draft.
    restarts : int
        How often the draft was restarted.
    """

    requests: int
    prompt_tokens: int
    tokens: int
    tokens_per_s: float
    tokens_per_round: float
    losses: int
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Sums over the finished requests. Replaced as a whole, since another thread may read them."""

    totals: Totals = field(default_factory=Totals)
    prompt_tokens: int = 0
    losses: int = 0

    def plus(self, generation: Generation, *, prompt_tokens: int) -> Past:
        return Past(
            totals=self.totals.plus(generation.timeline),
            prompt_tokens=self.prompt_tokens + prompt_tokens,
            losses=self.losses + generation.losses,
        )
