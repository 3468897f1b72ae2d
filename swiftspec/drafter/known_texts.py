"""Requests of a batch, known by their texts: rows move when others end, and an engine gives them no numbers.

A text is looked up by its length, its last tokens and some before them, so that a long one takes no longer than a short
one. Two requests may agree in all of these and differ elsewhere: then one has the drafts of the other, which costs
speed, never output.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

_LAST = 16  # tokens that are all compared; before them one at every doubled distance from the end
T = TypeVar("T")


class Tokens(Protocol):
    """A list or an array of token ids."""

    def __getitem__(self, index: int, /) -> int: ...


class Row(NamedTuple):
    """A request after a step of its engine: the first `length` of `tokens` are its text, the last of these `sampled`.

    Nothing is sampled until the prompt has been read.
    """

    tokens: Tokens
    length: int
    sampled: Sequence[int]

    @property
    def text(self) -> tuple[int, ...]:
        """All of the text; as slow as it is long."""
        return tuple(int(self.tokens[index]) for index in range(self.length))


class KnownTexts(Generic[T]):
    """What is known of each request of a batch, from one step to the next."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], list[T]] = {}

    def step(self, rows: Sequence[Row]) -> tuple[list[T | None], list[T]]:
        """What is known of every row, None for a new one, and of requests that are gone; all is forgotten."""
        known, self._known = self._known, {}
        found: list[T | None] = []
        for row in rows:
            same = known.get(_key(row.tokens, row.length - len(row.sampled)))
            found.append(same.pop() if same else None)
        return found, [left for same in known.values() for left in same]

    def keep(self, row: Row, known: T) -> None:
        """Know this of a row of the step until the next."""
        self._known.setdefault(_key(row.tokens, row.length), []).append(known)


def _key(tokens: Tokens, length: int) -> tuple[int, ...]:
    distances = list(range(1, min(_LAST, length) + 1))
    while distances and 2 * distances[-1] <= length:
        distances.append(2 * distances[-1])
    return (length, *[int(tokens[length - distance]) for distance in distances])
