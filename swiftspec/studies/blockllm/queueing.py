"""Queues of a device group, and the place of a request's next step: no clock and no SimPy here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from swiftspec.studies.blockllm.deployment import Block


class Cache(IntEnum):
    """Treatment of a request's KV when it goes to a replica; of equally quick ones the first is taken."""

    KEEP = 0  # it is there, or there is none yet
    MOVE = 1
    RECOMPUTE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Replica to which a request may go.

    Parameters
    ----------
    group : str
    cache : Cache
    ready_s : float
        From now until its hidden states, and its KV if that is moved, are there.
    wait_s : float
        From now until the group has a step for it.
    step_s : float
        Of that step, with the rows of the earlier tokens if they are recomputed.
    """

    group: str
    cache: Cache
    ready_s: float
    wait_s: float
    step_s: float

    @property
    def hop_s(self) -> float:
        """Expected time until its rows are computed: messages arrive while it waits."""
        return max(self.ready_s, self.wait_s) + self.step_s


def best_place(places: Iterable[Place]) -> Place:
    """The quickest one; of equally quick ones that which does least to the KV."""
    return min(places, key=lambda place: (place.hop_s, place.cache))


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """A request's rows at a block.

    Parameters
    ----------
    block : str
    rows : int
    is_returning : bool
        Whether the request has had its first token, so that it goes before new ones.
    number : int
        Place in the order of arrival at the group.
    done : object
        What the simulation waits for.
    """

    block: str
    rows: int
    is_returning: bool
    number: int
    done: Any

    @property
    def order(self) -> tuple[bool, int]:
        return not self.is_returning, self.number


@dataclass(slots=True, kw_only=True)
class _Line:
    """Waiting items of one kind, in order, and their rows."""

    items: dict[int, Item] = field(default_factory=dict)
    rows: int = 0

    def add(self, item: Item) -> None:
        self.items[item.number] = item
        self.rows += item.rows

    def remove(self, item: Item) -> None:
        if self.items.pop(item.number, None) is not None:
            self.rows -= item.rows


class Queues:
    """What waits for a device group: returning requests of each block, and behind them new ones.

    Parameters
    ----------
    blocks : mapping of str to Block
        Those that the group holds.
    returning_first : bool
        Otherwise all are served in the order of their arrival.
    """

    def __init__(self, blocks: Mapping[str, Block], *, returning_first: bool = True) -> None:
        self._blocks = blocks
        self._returning_first = returning_first
        self._lines = {name: (_Line(), _Line()) for name in blocks}

    def add(self, item: Item) -> None:
        self._line(item).add(item)

    def withdraw(self, item: Item) -> None:
        """Remove an item that is no longer wanted; nothing if its step has begun."""
        self._line(item).remove(item)

    def take(self) -> list[Item]:
        """Items of the next step, removed: of the block whose first one is first in order, as many as fit."""
        heads = [next(iter(line.items.values())) for lines in self._lines.values() for line in lines if line.items]
        if not heads:
            return []
        block = min(heads, key=lambda item: item.order).block
        room = self._blocks[block].max_batch
        taken: list[Item] = []
        for line in self._lines[block]:
            taken += list(line.items.values())[: room - len(taken)]
        for item in taken:
            self._line(item).remove(item)
        return taken

    def wait_s(self, block: str, *, is_returning: bool) -> float:
        """Steps before that of an item that would come now, in closed form.

        Of its own block whole batches go first; the rest shares its step. Of every other block with an item before it
        all such items go first.
        """
        wait_s = 0.0
        for name, lines in self._lines.items():
            ahead = lines[:1] if is_returning or not self._returning_first else lines
            number, rows = sum(len(line.items) for line in ahead), sum(line.rows for line in ahead)
            if not number:
                continue
            kind = self._blocks[name]
            if name == block:
                steps = number // kind.max_batch
                wait_s += kind.step(rows * min(1.0, steps * kind.max_batch / number), steps=steps)
            else:
                wait_s += kind.step(rows, steps=-(-number // kind.max_batch))
        return wait_s

    def _line(self, item: Item) -> _Line:
        is_new = self._returning_first and not item.is_returning
        return self._lines[item.block][is_new]
