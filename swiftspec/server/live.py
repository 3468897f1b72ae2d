"""The running requests as server-sent events, for the start page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from math import inf
from typing import TYPE_CHECKING, Any

from swiftspec.server.errors import RequestError
from swiftspec.server.replies import event

if TYPE_CHECKING:
    from swiftspec.server.serving import Serving

__all__ = ["LiveView"]

_EVERY_S = 0.5
_MOST_REQUESTS = 64  # that are listed
_MOST_LISTENERS = 32


class LiveView:
    """What a server does at a moment: numbers only, nothing of any text."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._num_listeners = 0
        self._said, self._said_s = b"", -inf

    def listen(self) -> AsyncIterator[bytes]:
        """Events for one more listener. RequestError if there are too many."""
        if self._num_listeners >= _MOST_LISTENERS:
            raise RequestError(f"{_MOST_LISTENERS} listeners are there, which is the limit", status=503)
        return self._events()

    async def _events(self) -> AsyncIterator[bytes]:
        """The present state, twice a second, until the client goes."""
        self._num_listeners += 1
        try:
            while True:
                yield self._present()
                await asyncio.sleep(_EVERY_S)
        finally:
            self._num_listeners -= 1

    def _present(self) -> bytes:
        """The state as an event, made once for all listeners of some moments."""
        now_s = time.perf_counter()
        if now_s >= self._said_s + _EVERY_S / 2:
            self._said, self._said_s = event(self.state()), now_s
        return self._said

    def state(self) -> dict[str, Any]:
        """The present state."""
        serving, now_s = self._serving, time.perf_counter()
        engine, answers = serving.state(), list(serving.answers.values())
        begun = [answer for answer in answers if answer.commits_s]
        return {
            "model": serving.model,
            "phase": serving.phase,
            "draft": engine.draft if engine else None,
            "num_running": engine.num_running if engine else 0,
            "num_waiting": engine.num_waiting if engine else 0,
            "max_running": engine.max_running if engine else 0,
            "cache_usage": engine.cache_usage if engine else 0.0,
            "num_finished": serving.metrics.num_finished,
            "num_tokens": serving.metrics.num_tokens + sum(answer.usage.completion_tokens for answer in answers),
            "tokens_per_round": serving.metrics.tokens_per_round,
            "requests": [
                {
                    "number": answer.number,
                    "prompt_tokens": answer.usage.prompt_tokens,
                    "tokens": answer.usage.completion_tokens,
                    "rounds": len(answer.commits_s),
                    "age_s": round(now_s - answer.arrival_s, 2),
                }
                for answer in [*begun, *(each for each in answers if not each.commits_s)][:_MOST_REQUESTS]
            ],
        }
