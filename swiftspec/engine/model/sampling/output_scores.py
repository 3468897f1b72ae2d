"""Log-probs of the output: the target's own of every token that it gives the user, whichever policy had it verified."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import as_candidates
from swiftspec.engine.model.sampling.paths import CachedPaths, Path, after
from swiftspec.policies.effects import Candidates, Row

_NONE = Candidates((), ())


class _Choice(NamedTuple):
    position: int
    log_prob: float
    likeliest: Candidates


class OutputScores:
    """Log-probs of the target's choices, from the forward that made them until they are committed.

    A row is found again by its path: slots change, and most rows of a tree come to nothing.

    num_candidates: likeliest tokens to tell beside each token.
    """

    def __init__(self, prompt: Sequence[int], num_candidates: int) -> None:
        self._num_candidates = num_candidates
        self._end, self._length = after(b"", prompt), len(prompt)  # of the text so far
        self._cache = CachedPaths()
        self._choices: dict[Path, _Choice] = {}
        self._last: tuple[list[Path], list[int], Tensor] | None = None  # rows of the last forward

    def prefill(self, tokens: Sequence[int], position: int, choice: int, logits: Tensor) -> None:
        """Enter prompt tokens from a position on, and what the target chooses after the last by its logits [1, V]."""
        self._cache.prefill(tokens)
        self._enter([self._cache.prefix], [position + len(tokens) - 1], [choice], logits)

    def forward(self, rows: Sequence[Row], choices: Sequence[int], logits: Tensor, *, is_final: bool = True) -> None:
        """Enter rows, and what the target chooses after each by its logits [R, V]. is_final: it chooses once."""
        paths, positions = self._cache.forward(rows), [row.position for row in rows]
        self._last = None if is_final else (paths, positions, logits.clone())
        self._enter(paths, positions, choices, logits)

    def choose_again(self, choices: Sequence[int]) -> None:
        """Change what the target chooses after the rows of the last forward."""
        assert self._last is not None, "the last forward was final"
        paths, positions, logits = self._last
        self._enter(paths, positions, choices, logits)

    def _enter(self, paths: Sequence[Path], positions: Sequence[int], choices: Sequence[int], logits: Tensor) -> None:
        # A token's log-prob is the same number in its own place and among the likeliest.
        every = logits.log_softmax(dim=-1)
        own = every.gather(1, torch.tensor(choices, device=every.device).unsqueeze(1)).squeeze(1).tolist()
        likeliest = (_NONE,) * len(paths)
        if self._num_candidates:
            best = every.topk(min(self._num_candidates, every.shape[1]), dim=-1)
            likeliest = as_candidates(best.indices.tolist(), best.values.tolist())
        self._choices |= zip(paths, map(_Choice, positions, own, likeliest), strict=True)

    def keep(self, slots: Sequence[int], num_verified: int) -> None:
        self._cache.keep(slots, num_verified)

    def take(self, tokens: Sequence[int]) -> tuple[tuple[float, ...], tuple[Candidates, ...]]:
        """Log-probs of committed tokens, and the likeliest tokens in the place of each; what is older is forgotten."""
        taken: list[_Choice] = []
        for token in tokens:
            taken.append(self._choices[self._end])
            self._end = after(self._end, (token,))
        self._length += len(tokens)
        self._choices = {path: each for path, each in self._choices.items() if each.position >= self._length - 1}
        return tuple(each.log_prob for each in taken), tuple(each.likeliest for each in taken)
