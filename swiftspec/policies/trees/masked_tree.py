"""Token tree of a parallel draft, whose forward answers after tokens, and after masks below them.

The answer after a token is the draft's distribution of the next one. The answer after the k-th mask below it is the
distribution of the token k positions further, whatever comes in between: a marginal. Nodes that were forwarded have
candidates of their own; below a forwarded node with masks, a node that was not has the marginals of its position, the
same for all nodes at that position. A path's score is the sum of its log-probs, so a product of marginals counts for a
path that nobody has forwarded. Once a node is forwarded its own candidates replace the marginals.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import count, islice
from math import inf, log

from swiftspec.policies.tree import Candidates, Node, Row, SlottedTree, Subtree, at_temperature

_UNKNOWN = Candidates((), ())


class _Node(Node):
    """A node. Without a slot it has not been forwarded, and its candidates are marginals, or none."""

    __slots__ = ("ahead", "candidates", "children")

    def __init__(self, token: int, position: int, ahead: tuple[Candidates, ...] = ()) -> None:
        """`ahead`: marginals of the positions after it, the next one first."""
        super().__init__(token, position)
        self.candidates, self.ahead = (ahead[0], ahead[1:]) if ahead else (_UNKNOWN, ())
        self.children: dict[int, _Node] = {}  # those looked at so far, by token

    def child(self, token: int) -> "_Node":
        """The node of a next token; a new one knows what the marginals say."""
        node = self.children.get(token)
        if node is None:
            node = self.children[token] = _Node(token, self.position + 1, self.ahead)
        return node

    def learn(self, candidates: Candidates, ahead: tuple[Candidates, ...]) -> None:
        """Take the answer of its forward. Nodes below that were not forwarded knew less, and are made anew."""
        self.candidates, self.ahead = candidates, ahead
        self.children = {token: node for token, node in self.children.items() if node.slot >= 0}


class MaskedTree(SlottedTree[_Node]):
    """Best-first growth, several levels per forward.

    Use: `pick` rows, forward them, `grow`; `advance` with a verdict. `compact` after either: masks do not stay.

    root, position: last token of the prompt and its position.
    capacity: most forwarded nodes. The draft's cache needs `num_leaves` * `num_masks` slots more.
    mask_token: the draft's.
    num_masks: masks below a leaf: levels of marginals, in addition to its own candidates.
    num_leaves: leaves with masks per forward.
    temperature: as of `TokenTree`.
    """

    def __init__(
        self,
        root: int,
        *,
        position: int,
        capacity: int,
        mask_token: int,
        num_masks: int,
        num_leaves: int = 1,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(_Node(root, position), capacity=capacity, temperature=temperature)
        self._mask_token, self._num_masks, self._num_leaves = mask_token, num_masks, num_leaves
        self._masked: list[_Node] = []  # those of the last `pick` with masks below

    @property
    def can_grow(self) -> bool:
        """Whether there is a slot for a node."""
        return len(self._nodes) < self._capacity

    @property
    def is_bare(self) -> bool:
        """Whether the root has yet to be forwarded: at best marginals are known below it."""
        return self._root.slot < 0

    def pick(self, num_rows: int) -> tuple[Row, ...]:
        """The next forward: at most `num_rows` tokens, then masks.

        The tokens are the best nodes without a slot. A node never outscores its parent, so each has its path above it,
        forwarded earlier or picked as well. If the root has no slot, it comes first, after the verified tokens before
        it, which do not count; if that path is longer than the tree has slots, the rest waits for the next `compact`.
        Masks go below the root if it is picked, and below the best of the picked leaves.
        """
        new_root = self._root.slot < 0
        self._picked = self._place_path() if new_root else []
        self._nodes += self._picked
        leaves = self._place_leaves(num_rows - new_root) if self._root.slot >= 0 else []
        if new_root and self._root.slot >= 0:
            leaves.insert(0, self._root)
        self._masked = leaves[: self._num_leaves]
        rows = [Row(node.token, node.position, node.ancestors) for node in self._picked]
        for leaf in self._masked:
            rows += self._masks_below(leaf, first_slot=len(self._nodes) + len(rows) - len(self._picked))
        return tuple(rows)

    def grow(self, candidates: Sequence[Candidates]) -> None:
        """Take the answers to the rows of the last `pick`."""
        answers = [Candidates(tokens, at_temperature(lps, self._temperature)) for tokens, lps in candidates]
        marginals = iter(answers[len(self._picked) :])
        ahead_of = {leaf: tuple(islice(marginals, self._num_masks)) for leaf in self._masked}
        for node, answer in zip(self._picked, answers, strict=False):
            # The continuation of a row before the root is already verified.
            if node.position >= self._root.position:
                inherited = self._nodes[node.parent].ahead[1:] if node.parent >= 0 else ()
                node.learn(answer, ahead_of.get(node, inherited))
        self._picked = []

    def put_back(self) -> None:
        """Undo the last `pick`: its forward was not computed."""
        del self._nodes[len(self._nodes) - len(self._picked) :]
        for node in self._picked:
            node.slot, node.parent, node.ancestors = -1, -1, 0
        self._picked = []

    def best(self, num_rows: int, *, least_probability: float = 0.0) -> Subtree:
        """The `num_rows` best nodes, as `TokenTree.best`."""
        worst = log(least_probability) if least_probability > 0 else -inf
        index_of = {self._root: 0}
        tokens, parents = [self._root.token], [-1]
        for score, node, parent in islice(self._ranked(), num_rows - 1):
            if score < worst:
                break
            index_of[node] = len(tokens)
            tokens.append(node.token)
            parents.append(index_of[parent])
        return Subtree(self._root.position, tuple(tokens), tuple(parents))

    def path_log_probs(self, subtree: Subtree) -> tuple[float, ...]:
        """As of `TokenTree`."""
        nodes, found = [self._root], [0.0]
        for token, parent in zip(subtree.tokens[1:], subtree.parents[1:], strict=True):
            tokens, logprobs = nodes[parent].candidates
            nodes.append(nodes[parent].child(token))
            found.append(found[parent] + logprobs[tokens.index(token)])
        return tuple(found[1:])

    def advance(self, tokens: Sequence[int]) -> None:
        """Follow the verified tokens and re-root at the last one.

        Marginals hold for any token, so that something may be known below it even if it was no candidate.
        """
        node = self._root
        for token in tokens:
            self._stem.append(node)
            node = node.child(token)
        self._root = node

    def _ranked(self) -> Iterator[tuple[float, _Node, _Node]]:
        """Nodes below the root, best first: score, node, parent."""
        order = count()
        # A parent's best unseen candidate represents the rest: (-score, order, the parent, its score, which candidate).
        heap: list[tuple[float, int, _Node, float, int]] = []
        root = self._root
        if root.candidates.tokens:
            heap.append((-root.candidates.logprobs[0], next(order), root, 0.0, 0))
        while heap:
            negative, number, parent, above, rank = heap[0]
            tokens, logprobs = parent.candidates
            if rank + 1 < len(tokens):
                heapreplace(heap, (-above - logprobs[rank + 1], number, parent, above, rank + 1))
            else:
                heappop(heap)
            node = parent.child(tokens[rank])
            if node.candidates.tokens:
                heappush(heap, (negative - node.candidates.logprobs[0], next(order), node, -negative, 0))
            yield -negative, node, parent

    def _place_leaves(self, num_rows: int) -> list[_Node]:
        """Give the best nodes without a slot the next ones; returns those below which none was given one."""
        num_rows = min(num_rows, self._capacity - len(self._nodes))
        leaves: dict[_Node, None] = {}
        if num_rows <= 0:
            return []
        for _, node, parent in self._ranked():
            if node.slot >= 0:
                continue
            node.slot, node.parent = len(self._nodes), parent.slot
            node.ancestors = parent.ancestors | 1 << parent.slot
            self._nodes.append(node)
            self._picked.append(node)
            leaves.pop(parent, None)
            leaves[node] = None
            num_rows -= 1
            if num_rows == 0:
                break
        return list(leaves)

    def _masks_below(self, leaf: _Node, *, first_slot: int) -> Iterator[Row]:
        ancestors = leaf.ancestors | 1 << leaf.slot
        for number in range(self._num_masks):
            yield Row(self._mask_token, leaf.position + 1 + number, ancestors)
            ancestors |= 1 << first_slot + number
