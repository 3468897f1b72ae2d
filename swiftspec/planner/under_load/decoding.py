"""Requests that decode: one token a step each, or the tokens of recorded rounds."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from swiftspec.engines.words import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Drafting in lockstep: all requests of a step draft together, then all are verified.

    rows: of a verification: the draft tokens and one more.
    draft_s: seconds of a round's draft forwards, from the requests and their mean context.
    tokens: tokens of recorded rounds, the bonus token included.
    cache_tokens: tokens that the KV cache has room for beside the draft's weights and its own cache; as without it if
        None.
    reads_target: whether the draft needs the target's hidden states of all the text.
    method: how engines call it.
    """

    rows: int
    draft_s: Callable[[int, float], float]
    tokens: npt.NDArray[np.int64]
    cache_tokens: int | None = None
    reads_target: bool = False
    method: Method = Method.MODEL


class Owner(Protocol):
    """Whoever is told that a request has ended, and counts the tokens that nobody shares."""

    own_tokens: int

    def finish(self, number: int, out_s: float, cache_tokens: int) -> None:
        """The last token of a request is out; it had this many tokens in the cache."""
        ...


class PlainDecoding:
    """Requests that decode a token in every step: all that counts are their number, their tokens and who ends when."""

    rows = 1

    def __init__(self, run: Owner) -> None:
        self._run = run
        self.count = 0
        self.cache_tokens = 0
        self._steps = 0
        self._ends: list[tuple[int, int]] = []
        self._begun: dict[int, tuple[int, int]] = {}  # number -> cache tokens when it joined, and the step then

    def draft_s(self) -> float:
        return 0.0

    def add(self, number: int, cache_tokens: int, left: int) -> None:
        self.count += 1
        self.cache_tokens += cache_tokens
        end = self._steps + left
        heapq.heappush(self._ends, (end, number))
        self._begun[number] = (cache_tokens, self._steps)

    def steps_left(self) -> int:
        """Steps until somebody ends."""
        return self._ends[0][0] - self._steps

    def advance(self, out_s: float, steps: int) -> None:
        self._steps += steps
        self.cache_tokens += steps * self.count
        self._run.own_tokens += steps * self.count
        while self._ends and self._ends[0][0] <= self._steps:
            _, number = heapq.heappop(self._ends)
            self._run.finish(number, out_s, self._leave(number))

    def take_newest(self) -> tuple[int, int, int]:
        """Remove whoever joined last: number, tokens in its cache, and tokens that are left to decode."""
        number = next(reversed(self._begun))
        end = next(end for end, other in self._ends if other == number)
        self._ends.remove((end, number))
        heapq.heapify(self._ends)
        return number, self._leave(number), end - self._steps

    def _leave(self, number: int) -> int:
        """Tokens in the cache of whoever leaves."""
        cache_tokens, begun = self._begun.pop(number)
        cache_tokens += self._steps - begun
        self.count -= 1
        self.cache_tokens -= cache_tokens
        return cache_tokens


class ChainedDecoding:
    """Requests that draft and verify in lockstep: each gets the tokens of a recorded round in every step."""

    def __init__(self, run: Owner, chains: Chains, rng: np.random.Generator) -> None:
        self._run = run
        self._chains = chains
        self._rng = rng
        self.rows = self._chains.rows
        self._numbers: list[int] = []
        self._left = np.zeros(0, np.int64)
        self._cache = np.zeros(0, np.int64)
        self._round = np.zeros(0, np.int64)

    @property
    def count(self) -> int:
        return len(self._numbers)

    @property
    def cache_tokens(self) -> int:
        return int(self._cache.sum())

    def draft_s(self) -> float:
        return self._chains.draft_s(self.count, self.cache_tokens / self.count)

    def add(self, number: int, cache_tokens: int, left: int) -> None:
        self._numbers.append(number)
        self._left = np.append(self._left, left)
        self._cache = np.append(self._cache, cache_tokens)
        self._round = np.append(self._round, self._rng.integers(len(self._chains.tokens)))

    def steps_left(self) -> int:
        """One: how many tokens a step brings differs between requests."""
        return 1

    def advance(self, out_s: float, steps: int) -> None:
        assert steps == 1, "see steps_left"
        tokens = np.minimum(self._chains.tokens[self._round], self._left)
        self._round = (self._round + 1) % len(self._chains.tokens)
        self._left = self._left - tokens
        self._cache = self._cache + tokens
        self._run.own_tokens += int(tokens.sum())
        for index in np.flatnonzero(self._left <= 0)[::-1].tolist():
            number, cache_tokens = self._numbers[index], int(self._cache[index])
            self._remove(index)
            self._run.finish(number, out_s, cache_tokens)

    def take_newest(self) -> tuple[int, int, int]:
        number, cache_tokens, left = self._numbers[-1], int(self._cache[-1]), int(self._left[-1])
        self._remove(len(self._numbers) - 1)
        return number, cache_tokens, left

    def _remove(self, index: int) -> None:
        del self._numbers[index]
        self._left, self._cache, self._round = (
            np.delete(values, index) for values in (self._left, self._cache, self._round)
        )
