"""Token tree: the draft's unverified continuations of the prefix. Pure Python; no torch, no clock, no randomness."""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from swiftspec.policies.effects import Candidates, Row, Subtree

__all__ = ["Kept", "TokenTree"]


class Kept(NamedTuple):
    """Tree slots that survive an `advance`, in their new order; the first `num_verified` join the prefix."""

    slots: tuple[int, ...]
    num_verified: int


class _Node:
    """A token after a path. It has a slot once it was a row of a forward, and children only after that."""

    __slots__ = ("ancestors", "children", "parent", "position", "score", "slot", "token")

    def __init__(self, token: int, position: int, score: float, parent: "_Node | None") -> None:
        self.token = token
        self.position = position
        self.score = score  # cumulative log-prob; only differences under one root matter
        self.parent = parent
        self.slot = -1
        self.ancestors = 0
        self.children: list[_Node] = []

    def child(self, token: int) -> "_Node | None":
        for child in self.children:
            if child.token == token:
                return child
        return None

    def forwarded_below(self) -> Iterator["_Node"]:
        """This node, if it has a slot, and all such descendants; parents first."""
        pending = [self] if self.slot >= 0 else []
        while pending:
            node = pending.pop()
            yield node
            pending += [child for child in node.children if child.slot >= 0]


class TokenTree:
    """Best-first growth by cumulative log-prob. A child never outscores its parent, so the best nodes are connected.

    The root is the last verified token. Its KV is not in the prefix: it is the first row of whatever comes next. Use:
    `pick` rows, forward them, `grow`; `advance` with a verdict, then `compact` before the next `pick`.

    Parameters
    ----------
    root, position : int
        Last token of the prompt and its position.
    capacity : int
        Tree slots of the draft's cache; `pick` never asks for more.
    """

    def __init__(self, root: int, *, position: int, capacity: int) -> None:
        if capacity < 2:
            raise ValueError(f"capacity is {capacity}; a miss alone needs 2 tree slots")
        self._capacity = capacity
        self._root = _Node(root, position, 0.0, None)
        self._stem: list[_Node] = []  # verified tokens before the root whose KV is not in the prefix yet
        self._num_slots = 0
        self._picked: list[_Node] = []
        # Unexpanded leaves, best first, as (-score, tie-break, siblings, index): only the best sibling left is queued.
        self._frontier: list[tuple[float, int, list[_Node], int]] = []
        self._num_queued = 0

    @property
    def position(self) -> int:
        """Position of the root; also the number of verified tokens before it."""
        return self._root.position

    @property
    def can_grow(self) -> bool:
        """Whether `pick` would find a row and a slot for it."""
        return self._root.slot < 0 or (self._num_slots < self._capacity and bool(self._frontier))

    def pick(self, num_rows: int) -> tuple[Row, ...]:
        """At most `num_rows` best unexpanded leaves as rows of the next forward; they take the next tree slots.

        After a miss the missing part of the verified path comes first and alone, whatever `num_rows` is.
        """
        if self._root.slot < 0:
            self._picked = [node for node in self._stem if node.slot < 0] + [self._root]
        else:
            num_rows = min(num_rows, self._capacity - self._num_slots)
            self._picked = list(self._pop_best(num_rows))
        for node in self._picked:
            node.slot = self._num_slots
            self._num_slots += 1
            if node.parent is not None:
                node.ancestors = node.parent.ancestors | 1 << node.parent.slot
        return tuple([Row(node.token, node.position, node.ancestors) for node in self._picked])

    def grow(self, candidates: Sequence[Candidates]) -> None:
        """Hang each picked row's candidates below it, in the order `pick` gave the rows."""
        for node, (tokens, logprobs) in zip(self._picked, candidates, strict=True):
            if node in self._stem:
                continue  # its continuation is already verified
            below = node.position + 1
            node.children = [
                _Node(token, below, node.score + logprob, node) for token, logprob in zip(tokens, logprobs, strict=True)
            ]
            self._queue_unexpanded(node.children)
        self._picked = []

    def best(self, num_rows: int) -> Subtree:
        """The `num_rows` best nodes, expanded or not, root included, parents first; all of them if there are fewer."""
        root = self._root
        nodes, parents = [root], [-1]
        # As in the frontier, a node's best unseen sibling stands for the rest: two pushes a node.
        heap: list[tuple[float, int, list[_Node], int, int]] = []
        if root.children:
            heap.append((-root.children[0].score, 0, root.children, 0, 0))
        num_pushed = 1
        while heap and len(nodes) < num_rows:
            _, _, siblings, index, parent = heapq.heappop(heap)
            node = siblings[index]
            if node.children:
                entry = (-node.children[0].score, num_pushed, node.children, 0, len(nodes))
                heapq.heappush(heap, entry)
            if index + 1 < len(siblings):
                entry = (-siblings[index + 1].score, num_pushed + 1, siblings, index + 1, parent)
                heapq.heappush(heap, entry)
            num_pushed += 2
            nodes.append(node)
            parents.append(parent)
        return Subtree(root.position, tuple([node.token for node in nodes]), tuple(parents))

    def advance(self, tokens: Sequence[int]) -> bool:
        """Follow the verified tokens and re-root at the last one; True on a hit, when that one is in the tree.

        On a miss the tree is the new root alone, and the next `pick` is whatever part of the path has no slot yet.
        """
        node, hit = self._root, True
        for token in tokens:
            self._stem.append(node)
            child = node.child(token)
            hit = child is not None
            node = child or _Node(token, node.position + 1, 0.0, node)
        self._root = node
        return hit

    def compact(self) -> Kept:
        """Forget what the last `advance` cut off. Answers the slots to keep: verified ones, then the tree's."""
        verified = [node.slot for node in self._stem if node.slot >= 0]
        self._stem = [node for node in self._stem if node.slot < 0]
        survivors = list(self._root.forwarded_below())
        slots = (*verified, *[node.slot for node in survivors])
        first = self._stem[0] if self._stem else self._root
        first.parent = None  # what is above lies in the prefix, which every row sees
        self._frontier = []
        for slot, node in enumerate(survivors):
            node.slot = slot
            node.ancestors = node.parent.ancestors | 1 << node.parent.slot if node.parent else 0
        for node in survivors:
            self._queue_unexpanded(node.children)
        self._num_slots = len(survivors)
        return Kept(slots, len(verified))

    def _queue(self, siblings: list[_Node], index: int) -> None:
        """Queue the best unexpanded one of `siblings[index:]`, which are sorted by score."""
        heapq.heappush(self._frontier, (-siblings[index].score, self._num_queued, siblings, index))
        self._num_queued += 1

    def _queue_unexpanded(self, siblings: list[_Node]) -> None:
        for index, node in enumerate(siblings):
            if node.slot < 0:
                # Siblings are expanded best first, so none behind the first unexpanded one has a slot.
                self._queue(siblings, index)
                return

    def _pop_best(self, num_rows: int) -> Iterator[_Node]:
        popped = 0
        while self._frontier and popped < num_rows:
            _, _, siblings, index = heapq.heappop(self._frontier)
            if index + 1 < len(siblings):
                self._queue(siblings, index + 1)
            popped += 1
            yield siblings[index]
