"""Rounds as arrays, for requests that are all at the beginning of one: their steps are those of the rounds' columns."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from swiftspec.planner.under_load.rounds import Round

__all__ = ["Column", "RoundArrays"]


class Column(NamedTuple):
    """A step of a round that requests share.

    level: of the draft's forward; None for the verification. rows: of each request in it. attended: rows times slots
    that they attend to.
    """

    level: int | None
    rows: list[int]
    attended: float


class RoundArrays:
    """Recorded rounds.

    Parameters
    ----------
    rounds : sequence of Round
    """

    def __init__(self, rounds: Sequence[Round]) -> None:
        self.num_levels = max((len(one.draft_rows) for one in rounds), default=0)
        self._rows = np.zeros((len(rounds), self.num_levels + 1), np.int64)
        for number, one in enumerate(rounds):
            self._rows[number, : len(one.draft_rows)] = one.draft_rows
            self._rows[number, -1] = one.verify_rows
        # The first forward has the text's last tokens; later ones have the rows of those before it in the cache, too.
        self._cached = np.cumsum(self._rows, axis=1) - self._rows - self._rows[:, :1]
        self._cached[:, -1] = -1
        self._reads = np.array([one.read_rows > 0 for one in rounds])

    def columns(self, rounds: Sequence[int], texts: Sequence[int], *, max_rows: int) -> Iterator[Column] | None:
        """Steps of a round of requests at these rounds, whose texts have so many tokens.

        None if not all rows of a step fit into it, or a draft first reads text.
        """
        indices = np.array(rounds)
        rows = self._rows[indices]
        if self._reads[indices].any() or (len(rounds) > 1 and int(rows.sum(axis=0).max()) > max_rows):
            return None
        slots = np.maximum(0, np.array(texts)[:, None] + self._cached[indices])
        return self._steps(rows, (rows * slots).sum(axis=0).tolist())

    def _steps(
        self, rows: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", attended: list[float]
    ) -> Iterator[Column]:
        for level, column in enumerate(rows.T.tolist()):
            if present := [count for count in column if count]:
                yield Column(level if level < self.num_levels else None, present, attended[level])
