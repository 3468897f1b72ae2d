"""Requests that decode: one token a step each, or the tokens of recorded rounds."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.engines.words import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Drafting in lockstep: all requests of a step draft together, then all are verified.

    rows: of a verification: the draft tokens and one more.
    draft_s: seconds of a round's draft forwards, from the requests and their mean context.
    tokens: tokens of recorded rounds, the bonus token included.
    method: how engines call it.
    """

    rows: int
    draft_s: Callable[[int, float], float]
    tokens: npt.NDArray[np.int64]
    method: Method = Method.MODEL


class Leaving(NamedTuple):
    """A request that leaves: tokens in its cache, and tokens that are left to decode."""

    number: int
    cache_tokens: int
    left: int


class PlainDecoding:
    """Requests that decode a token in every step: all that counts are their number, their tokens and who ends when."""

    rows = 1

    def __init__(self) -> None:
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

    def advance(self, steps: int) -> tuple[int, list[Leaving]]:
        """Decode; tokens by which the caches have grown, and whose last token is out."""
        self._steps += steps
        grown = steps * self.count
        self.cache_tokens += grown
        ended = []
        while self._ends and self._ends[0][0] <= self._steps:
            ended.append(self._leave(*heapq.heappop(self._ends)))
        return grown, ended

    def take_newest(self) -> Leaving:
        """Remove whoever joined last."""
        number = next(reversed(self._begun))
        end = next(end for end, other in self._ends if other == number)
        self._ends.remove((end, number))
        heapq.heapify(self._ends)
        return self._leave(end, number)

    def _leave(self, end: int, number: int) -> Leaving:
        cache_tokens, begun = self._begun.pop(number)
        cache_tokens += self._steps - begun
        self.count -= 1
        self.cache_tokens -= cache_tokens
        return Leaving(number, cache_tokens, end - self._steps)


class ChainedDecoding:
    """Requests that draft and verify in lockstep: each gets the tokens of a recorded round in every step."""

    def __init__(self, chains: Chains, rng: np.random.Generator) -> None:
        self._chains = chains
        self._rng = rng
        self.rows = chains.rows
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

    def advance(self, steps: int) -> tuple[int, list[Leaving]]:
        assert steps == 1, "see steps_left"
        tokens = np.minimum(self._chains.tokens[self._round], self._left)
        self._round = (self._round + 1) % len(self._chains.tokens)
        self._left = self._left - tokens
        self._cache = self._cache + tokens
        return int(tokens.sum()), [self._leave(index) for index in np.flatnonzero(self._left <= 0)[::-1].tolist()]

    def take_newest(self) -> Leaving:
        return self._leave(len(self._numbers) - 1)

    def _leave(self, index: int) -> Leaving:
        leaving = Leaving(self._numbers.pop(index), int(self._cache[index]), int(self._left[index]))
        self._left, self._cache, self._round = (
            np.delete(values, index) for values in (self._left, self._cache, self._round)
        )
        return leaving
