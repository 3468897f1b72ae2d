"""Token tree: the draft's unverified continuations of the prefix. Pure Python; no torch, no clock, no randomness."""

from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from math import exp, inf, log
from typing import Generic, NamedTuple, TypeVar


class Row(NamedTuple):
    """One token position in a forward.

    The rows of a forward take the next free tree slots of the cache, in order. A row sees the whole prefix, itself,
    and tree slot s where bit s of `ancestors` is set; those slots may be rows of the same forward.
    """

    token: int
    position: int
    ancestors: int


class Candidates(NamedTuple):
    """The draft's next tokens after one row, most probable first, with their log-probs (nats)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Subtree(NamedTuple):
    """Draft to target: nodes to verify, root first, parents before children.

    `parents[i]` is the index of node i's parent in this message (-1 for the root); the root is the last verified
    token, at `position`.
    """

    position: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @classmethod
    def chain(cls, position: int, tokens: tuple[int, ...]) -> "Subtree":
        """The subtree of tokens that follow each other."""
        return cls(position, tokens, tuple(range(-1, len(tokens) - 1)))

    def rows(self) -> tuple[Row, ...]:
        """The nodes as rows of one forward on a cache whose tree is empty."""
        rows: list[Row] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            if parent < 0:
                rows.append(Row(token, self.position, 0))
            else:
                above = rows[parent]
                rows.append(Row(token, above.position + 1, above.ancestors | 1 << parent))
        return tuple(rows)


class KeptSlots(NamedTuple):
    """Tree slots that survive an `advance`, in their new order; the first `num_verified` join the prefix."""

    slots: tuple[int, ...]
    num_verified: int


class Node:
    """A row of a past forward, or a token that still has to be one.

    Nodes refer to their parent by slot only, so pruned nodes are freed at once, without garbage collection.
    """

    __slots__ = ("ancestors", "parent", "position", "slot", "token")

    def __init__(self, token: int, position: int, slot: int = -1, parent: int = -1, ancestors: int = 0) -> None:
        self.token = token
        self.position = position
        self.slot = slot  # -1 before its forward
        self.parent = parent
        self.ancestors = ancestors


N = TypeVar("N", bound=Node)


class SlottedTree(Generic[N]):
    """The nodes of a tree that have slots of the draft's cache, under a root that verdicts move.

    The root is the last verified token. Its KV is not in the prefix: it is a row of the next forward.
    """

    def __init__(self, root: N, *, capacity: int, temperature: float) -> None:
        if capacity < 2:
            raise ValueError(f"capacity is {capacity}; a miss alone needs 2 tree slots")
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; expected a positive number")
        self._capacity = capacity
        self._temperature = temperature
        self._root = root
        self._stem: list[N] = []  # verified tokens before the root whose KV is not in the prefix yet
        self._nodes: list[N] = []  # by slot
        self._picked: list[N] = []

    @property
    def position(self) -> int:
        """Position of the root; also the number of verified tokens before it."""
        return self._root.position

    @property
    def num_slots(self) -> int:
        """Tree slots in use."""
        return len(self._nodes)

    def compact(self) -> KeptSlots:
        """Forget what the last `advance` cut off. Returns the slots to keep: verified ones, then the tree's."""
        verified = [node.slot for node in self._stem if node.slot >= 0]
        self._stem = [node for node in self._stem if node.slot < 0]
        survivors = self._surviving()
        kept = KeptSlots((*verified, *[node.slot for node in survivors]), len(verified))
        for slot, node in enumerate(survivors):
            if slot:  # parents have lower slots than their children, so the parent's is already renumbered
                parent = self._nodes[node.parent]
                node.parent, node.ancestors = parent.slot, parent.ancestors | 1 << parent.slot
            else:
                node.parent, node.ancestors = -1, 0  # its ancestors are in the prefix, which every row sees
            node.slot = slot
        self._nodes = survivors
        return kept

    def take_unread(self) -> list[int]:
        """Remove the verified tokens before the root: they were never forwarded. No slot is in use."""
        tokens = [node.token for node in self._stem]
        self._stem = []
        return tokens

    def _surviving(self) -> list[N]:
        """The root and all nodes below it, in order of their slots."""
        root = self._root
        if root.slot < 0:
            return []
        below = 1 << root.slot
        return [root, *[node for node in self._nodes[root.slot + 1 :] if node.ancestors & below]]

    def _place_path(self) -> list[N]:
        """Slots for the verified tokens without KV, each below the previous one, the root last. The tree is empty."""
        path = [*[node for node in self._stem if node.slot < 0], self._root][: self._capacity]
        for slot, node in enumerate(path):
            node.slot, node.parent, node.ancestors = slot, slot - 1, (1 << slot) - 1
        return path


class _Node(Node):
    """A node of a tree that grows level by level.

    Its candidates are expanded best first, so `children` are the nodes of the first ones; the others, bare leaves, need
    no object.
    """

    __slots__ = ("children", "logprobs", "score", "tokens")

    def __init__(self, token: int, position: int, score: float, slot: int, parent: int, ancestors: int) -> None:
        super().__init__(token, position, slot, parent, ancestors)
        self.score = score  # cumulative log-prob; only differences under one root matter
        self.tokens: tuple[int, ...] = ()
        self.logprobs: tuple[float, ...] = ()
        self.children: list[_Node] = []

    def after(self, token: int) -> "_Node":
        """The child with this token; a new node, still to be forwarded, if the token is a bare leaf or no candidate."""
        for child in self.children:
            if child.token == token:
                return child
        return _Node(token, self.position + 1, 0.0, -1, -1, 0)


class TokenTree(SlottedTree[_Node]):
    """Best-first growth by cumulative log-prob. A child never outscores its parent, so the best nodes are connected.

    Use: `pick` rows, forward them, `grow`; `advance` with a verdict, then `compact` before the next `pick`.

    Parameters
    ----------
    root, position : int
        Last token of the prompt and its position.
    capacity : int
        Tree slots of the draft's cache; `pick` never asks for more.
    temperature : float
        The draft's probabilities at this temperature score the nodes. A draft trained on the target's distribution
        knows how likely a token is to be drawn (1); a greedy target takes the most likely one, so below 1 is right.
    """

    def __init__(self, root: int, *, position: int, capacity: int, temperature: float = 1.0) -> None:
        super().__init__(_Node(root, position, 0.0, -1, -1, 0), capacity=capacity, temperature=temperature)
        # Best bare leaf of every node that has one, best first: (-score of the leaf, slot of the node, the node).
        self._frontier: list[tuple[float, int, _Node]] = []

    @property
    def can_grow(self) -> bool:
        """Whether `pick` would find a row and a slot for it."""
        return len(self._nodes) < self._capacity and (self._root.slot < 0 or bool(self._frontier))

    def pick(self, num_rows: int) -> tuple[Row, ...]:
        """At most `num_rows` best unexpanded leaves as rows of the next forward; they take the next tree slots.

        After a miss the missing part of the verified path comes first and alone, for any `num_rows`; if it is longer
        than the tree has slots, the rest waits for the next `compact`.
        """
        if self._root.slot < 0:
            self._picked = self._place_path()
        else:
            self._picked = self._place_leaves(min(num_rows, self._capacity - len(self._nodes)))
        self._nodes += self._picked
        return tuple([Row(node.token, node.position, node.ancestors) for node in self._picked])

    def grow(self, candidates: Sequence[Candidates]) -> None:
        """Add each picked row's candidates below it, in the order in which `pick` gave the rows."""
        frontier, temperature, position = self._frontier, self._temperature, self._root.position
        for node, (tokens, logprobs) in zip(self._picked, candidates, strict=True):
            # The continuation of a row before the root is already verified.
            if tokens and node.position >= position:
                node.tokens = tokens
                node.logprobs = logprobs if temperature == 1.0 else at_temperature(logprobs, temperature)
                heappush(frontier, (-node.score - node.logprobs[0], node.slot, node))
        self._picked = []

    def put_back(self) -> None:
        """Undo the last `pick`: its forward was not computed."""
        for node in reversed(self._picked):
            self._nodes.pop()
            if node.parent >= 0 and node.position > self._root.position:
                self._nodes[node.parent].children.pop()
            node.slot, node.parent, node.ancestors = -1, -1, 0
        self._picked = []
        self._rebuild_frontier()

    @property
    def is_bare(self) -> bool:
        """Whether nothing is known below the root yet."""
        return not self._root.tokens

    def best(self, num_rows: int, *, least_probability: float = 0.0) -> Subtree:
        """The `num_rows` best nodes, expanded or not, root included, parents first; all of them if there are fewer.

        Nodes whose acceptance the draft considers less likely than `least_probability` are left out.
        """
        root = self._root
        worst = inf if least_probability <= 0 else -root.score - log(least_probability)
        tokens, parents = [root.token], [-1]
        # (-score, index of the parent in the message, the parent, which of its candidates): a parent's best unseen
        # candidate represents the rest.
        heap: list[tuple[float, int, _Node, int]] = []
        if root.tokens:
            heap.append((-root.score - root.logprobs[0], 0, root, 0))
        while heap and len(tokens) < num_rows and heap[0][0] <= worst:
            _, index, parent, rank = heap[0]
            if rank + 1 < len(parent.tokens):
                heapreplace(heap, (-parent.score - parent.logprobs[rank + 1], index, parent, rank + 1))
            else:
                heappop(heap)
            if rank < len(parent.children) and (node := parent.children[rank]).tokens:
                heappush(heap, (-node.score - node.logprobs[0], len(tokens), node, 0))
            tokens.append(parent.tokens[rank])
            parents.append(index)
        return Subtree(root.position, tuple(tokens), tuple(parents))

    def path_log_probs(self, subtree: Subtree) -> tuple[float, ...]:
        """Log-probability of the path to each node of one of its subtrees after the root, as the draft sees it."""
        nodes: list[_Node | None] = [self._root]
        found = [0.0]
        for token, parent in zip(subtree.tokens[1:], subtree.parents[1:], strict=True):
            above = nodes[parent]
            assert above is not None, "a node with children was forwarded"
            rank = above.tokens.index(token)
            nodes.append(above.children[rank] if rank < len(above.children) else None)
            found.append(found[parent] + above.logprobs[rank])
        return tuple(found[1:])

    def best_chain(self, num_rows: int) -> Subtree:
        """The root, and from it on the likeliest candidate after each node, up to `num_rows` nodes in all."""
        node, tokens = self._root, [self._root.token]
        while node.tokens and len(tokens) < num_rows:
            tokens.append(node.tokens[0])
            if not node.children:
                break
            node = node.children[0]
        return Subtree.chain(self._root.position, tuple(tokens))

    def advance(self, tokens: Sequence[int]) -> bool:
        """Follow the verified tokens and re-root at the last one; True on a hit, when that one is in the tree.

        On a miss the tree is only the new root, and the next `pick` is the part of the path without slots.
        """
        node, hit = self._root, True
        for token in tokens:
            self._stem.append(node)
            hit = token in node.tokens
            node = node.after(token)
        self._root = node
        return hit

    def compact(self) -> KeptSlots:
        """The slots to keep, as `SlottedTree.compact`."""
        kept = super().compact()
        self._rebuild_frontier()
        return kept

    def _rebuild_frontier(self) -> None:
        self._frontier = [
            (-node.score - node.logprobs[len(node.children)], node.slot, node)
            for node in self._nodes
            if len(node.children) < len(node.tokens)
        ]
        heapify(self._frontier)

    def _place_leaves(self, num_rows: int) -> list[_Node]:
        """Nodes for the best bare leaves."""
        frontier, first_slot = self._frontier, len(self._nodes)
        leaves: list[_Node] = []
        for leaf_slot in range(first_slot, first_slot + num_rows):
            if not frontier:
                break
            negative, slot, parent = frontier[0]
            rank = len(parent.children)
            ancestors = parent.ancestors | 1 << slot
            leaf = _Node(parent.tokens[rank], parent.position + 1, -negative, leaf_slot, slot, ancestors)
            parent.children.append(leaf)
            leaves.append(leaf)
            if rank + 1 < len(parent.tokens):
                heapreplace(frontier, (-parent.score - parent.logprobs[rank + 1], slot, parent))
            else:
                heappop(frontier)
        return leaves


@lru_cache(maxsize=1 << 14)  # a replayed trace repeats its candidates
def at_temperature(logprobs: tuple[float, ...], temperature: float) -> tuple[float, ...]:
    """Log-probs among these candidates at another temperature; the other tokens' share is negligible below 1."""
    if temperature == 1.0:
        return logprobs
    # A draft does this for every row of an expansion, while the target waits: every step counts.
    coldness = 1.0 / temperature
    scaled = [logprob * coldness for logprob in logprobs]
    top = scaled[0]
    log_total = top + log(sum(map(exp, [value - top for value in scaled])))  # never below the first of them
    return tuple([value - log_total for value in scaled])
