"""Costs that controls weigh tokens against, and their correction by how long rounds take.

A profile is of another hour, or of other neighbours. What rounds take beyond their prediction is fitted, for each
number of sequences, by a line over their rows. Rounds that are all alike do not tell a cost of rows from one of the
round: most of it is then taken for one of rows, so that other lengths look better, are tried, and tell the rest.
"""

from functools import lru_cache
from typing import Protocol

_MEMORY = 0.99  # about the last 100 rounds of as many sequences
_TRUST = 2.0  # rounds that weigh as much as the prediction
_MOST_OFF = 2.0  # of a prediction; a round that takes longer still was held up by something else
_LEAST = 0.25  # share of a prediction that is left


class RoundCosts(Protocol):
    """Seconds of a round's parts."""

    def verify_s(self, num_sequences: int, num_rows: int, /) -> float:
        """One verification, with the host's time around it. num_rows: of all sequences together."""

    def level_s(self, level: int, num_sequences: int, /) -> float:
        """The draft forward for so many sequences' rows of a level below the root, if the round waits for it.

        level: from 1. A chain has a row on every level.
        """


class GroupCosts(RoundCosts, Protocol):
    """Costs of a group's rounds, whose requests have texts of their own lengths."""

    def cache_s(self, num_sequences: int, num_tokens: int, /) -> float:
        """What a verification takes longer than `verify_s` for so many tokens in all caches; less than 0 for few."""


class _Line:
    """Regression of seconds on rows. As if some rounds had shown neither a constant error nor one per row."""

    __slots__ = ("constant_s", "error", "error_by_rows", "row_s", "rows", "squares", "weight")

    def __init__(self) -> None:
        self.weight = self.rows = self.squares = self.error = self.error_by_rows = 0.0
        self.constant_s = self.row_s = 0.0

    def note(self, rows: int, error_s: float) -> None:
        self.weight = _MEMORY * self.weight + 1.0
        self.rows = _MEMORY * self.rows + rows
        self.squares = _MEMORY * self.squares + rows * rows
        self.error = _MEMORY * self.error + error_s
        self.error_by_rows = _MEMORY * self.error_by_rows + rows * error_s
        weight, squares = self.weight + _TRUST, self.squares + _TRUST
        divisor = weight * squares - self.rows * self.rows
        self.constant_s = (squares * self.error - self.rows * self.error_by_rows) / divisor
        self.row_s = (weight * self.error_by_rows - self.rows * self.error) / divisor


class MeasuredCosts:
    """Predicted costs and what rounds took beyond them: `GroupCosts`."""

    def __init__(self, costs: GroupCosts) -> None:
        # Computed once each: a control compares hundreds of them in every round.
        self._predicted_s = lru_cache(maxsize=None)(costs.verify_s)
        self.level_s = lru_cache(maxsize=None)(costs.level_s)
        self.cache_s = costs.cache_s
        self._lines: dict[int, _Line] = {}

    def verify_s(self, num_sequences: int, num_rows: int, /) -> float:
        """One verification, with what its rounds take beyond their prediction."""
        predicted_s = self._predicted_s(num_sequences, num_rows)
        line = self._lines.get(num_sequences)
        if line is None:
            return predicted_s
        return max(_LEAST * predicted_s, predicted_s + line.constant_s + line.row_s * num_rows)

    def note(self, num_sequences: int, num_rows: int, *, others_s: float, seconds: float) -> None:
        """Note that a verification, and what was predicted to take `others_s` beside it, took so long together."""
        predicted_s = others_s + self._predicted_s(num_sequences, num_rows)
        if seconds <= (1.0 + _MOST_OFF) * predicted_s:
            self._lines.setdefault(num_sequences, _Line()).note(num_rows, seconds - predicted_s)
