"""From logits to tokens: the target's choice, greedy or sampled, and the draft's candidates. No model, no state.

R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Sampler", "top_candidates"]

_NUCLEUS_GUESS = 256

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Chooses the target's token at each row. Temperature 0 is greedy.

    Otherwise the token is drawn by the Gumbel-max rule with noise that depends on seed and position alone, so that the
    same text gets the same next token whichever policy, tree or batch the row is computed in.

    Attributes
    ----------
    temperature : float
        0 or more.
    top_p : float
        Keep the fewest likeliest tokens that together reach this share, and what ties with the last of them; above
        0 up to 1 (1 = all).
    top_k : int
        Keep the `top_k` likeliest tokens and what ties with the last of them (0 = all). Applied before `top_p`.
    seed : int
        0 or more.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; expected 0 or a positive number")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; expected a number above 0 and up to 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; expected 0 (all tokens) or a positive integer")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed is {self.seed}; expected 0 to 2**64 - 1")

    def choose(self, logits: Tensor, positions: Sequence[int]) -> list[int]:
        """Token of each row, given logits [R, V] in fp32 and the position of each row."""
        if logits.shape[0] != len(positions):
            raise ValueError(f"positions are {len(positions)}; expected one for each of {logits.shape[0]} rows")
        scores: Floats = logits.numpy()
        if self.temperature > 0.0:
            vocab_size = logits.shape[1]
            noise = {position: self._noise(position, vocab_size) for position in set(positions)}
            scores = self._filtered(logits / self.temperature).numpy()
            scores = scores + np.stack([noise[position] for position in positions])
        # numpy's argmax: torch's is not vectorised and takes nine times as long.
        chosen: list[int] = scores.argmax(axis=-1).tolist()
        return chosen

    def _noise(self, position: int, vocab_size: int) -> Floats:
        """Standard Gumbel noise for every token, from a counter-based generator keyed by seed and position."""
        generator = np.random.Generator(np.random.Philox(key=np.array([self.seed, position], dtype=np.uint64)))
        exponential = generator.standard_exponential(vocab_size, dtype=np.float32)
        # The smallest positive float stands for a zero that underflowed.
        noise: Floats = -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))
        return noise

    def _filtered(self, scores: Tensor) -> Tensor:
        """Scores with the tokens that top-k and then top-p exclude at minus infinity."""
        if 0 < self.top_k < scores.shape[1]:
            last_kept = scores.topk(self.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < last_kept, -torch.inf)
        if self.top_p < 1.0:
            shares = scores.softmax(dim=-1)
            scores = scores.masked_fill(shares < _smallest_kept_share(shares, self.top_p), -torch.inf)
        return scores


def _smallest_kept_share(shares: Tensor, top_p: float) -> Tensor:
    """Share [R, 1] of the last token needed to reach `top_p`, likeliest first."""
    vocab_size = shares.shape[1]
    # The likeliest few hundred nearly always reach top_p; sorting a whole vocabulary takes several times as long.
    for count in (min(_NUCLEUS_GUESS, vocab_size), vocab_size):
        ordered = shares.topk(count, dim=-1).values
        reached_before = (ordered.cumsum(dim=-1) - ordered) >= top_p
        if count == vocab_size or bool(reached_before[:, -1].all()):
            break
    num_kept = (~reached_before).sum(dim=-1, keepdim=True).clamp_(min=1)
    return ordered.gather(1, num_kept - 1)


def top_candidates(logits: Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
    """Token ids and log-probs (natural, temperature 1) of the `k` likeliest tokens of each row, likeliest first.

    Logits are [R, V] in fp32; k is cut to V.
    """
    best = torch.log_softmax(logits, dim=-1).topk(min(k, logits.shape[1]), dim=-1)
    return best.indices.tolist(), best.values.tolist()
