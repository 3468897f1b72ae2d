"""Trees drafted level by level on the target's devices, a new one each round: EAGLE-2, Sequoia, EasySpec, heads."""

from collections.abc import Callable, Sequence
from itertools import count

from swiftspec.policies.colocated import colocated_round
from swiftspec.policies.effects import DraftForward, KeepKV, Program, Role, Subprogram, prefill, read_unread
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates, Row, Subtree


class Layers:
    """One round's tree: nodes numbered in the order they were added, the root (0) first.

    fresh: verified tokens without KV at the draft, the root last. They take the draft's first tree slots.
    position: of the root.
    fuzzy: use fuzzy forwards for all but the fresh tokens.
    is_exact: whether what those forwards leave in the cache is exact, and worth keeping.

    scores: one per node; the policy defines their meaning.
    """

    def __init__(self, fresh: Sequence[int], *, position: int, fuzzy: bool, is_exact: bool) -> None:
        self._fresh, self._position = tuple(fresh), position
        self._fuzzy, self._is_exact = fuzzy, is_exact
        self._tokens, self._parents = [fresh[-1]], [-1]
        self._rows: dict[int, Row] = {}  # of nodes that were forwarded
        self._slots: dict[int, int] = {}
        self.scores = [0.0]

    def add(self, parent: int, token: int, score: float) -> int:
        """Add a node; returns its number."""
        self._tokens.append(token)
        self._parents.append(parent)
        self.scores.append(score)
        return len(self._tokens) - 1

    def start(self, num_candidates: int) -> Subprogram[Candidates | None]:
        """Forward the fresh tokens; returns the root's candidates, or None if it was not computed."""
        rows = Subtree.chain(self._position - len(self._fresh) + 1, self._fresh).rows()
        answers = yield from DraftForward(rows, num_candidates, level=1)
        if not answers:
            return None
        self._rows[0], self._slots[0] = rows[-1], len(rows) - 1
        return answers[-1]

    def forward(self, nodes: Sequence[int], num_candidates: int, *, level: int) -> Subprogram[tuple[Candidates, ...]]:
        """Forward nodes whose parents were forwarded; returns the candidates of each, none if it was not computed.

        level: of the forward in its round, from 1.
        """
        rows = tuple(map(self._row, nodes))
        answers = yield from DraftForward(rows, num_candidates, fuzzy=self._fuzzy, level=level)
        if answers:
            self._rows.update(zip(nodes, rows, strict=True))
            self._slots.update(zip(nodes, count(self._slots[0] + len(self._slots))))
        return answers

    def _row(self, node: int) -> Row:
        parent = self._parents[node]
        above = self._rows[parent]
        return Row(self._tokens[node], above.position + 1, above.ancestors | 1 << self._slots[parent])

    def subtree(self, nodes: Sequence[int]) -> Subtree:
        """The root and `nodes`: every node's parent is the root or one of those before it."""
        index = {0: 0} | {node: number for number, node in enumerate(nodes, start=1)}
        tokens = tuple(self._tokens[node] for node in index)
        return Subtree(self._position, tokens, tuple(index.get(self._parents[node], -1) for node in index))

    def kept(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Draft slots of the fresh tokens and of those nodes that have one with exact KV."""
        if not self._slots:
            return ()
        exact = [self._slots[node] for node in nodes if node in self._slots] if self._is_exact else []
        return (*range(len(self._fresh)), *exact)


def layered_rounds(
    request: Request,
    draft: Callable[[Layers], Subprogram[list[int]]],
    *,
    fuzzy: bool = False,
    is_exact: bool = True,
    are_log_probs: bool = False,
) -> Program:
    """Draft a tree, verify the nodes that `draft` returns (without the root, parents first), keep the accepted KV.

    are_log_probs: whether the nodes' scores are the log-probabilities of their paths.
    fuzzy, is_exact: as of `Layers`. The draft forwards accepted tokens again if their KV was not exact.
    """
    yield from prefill(Role.TARGET, request.prompt[:-1])
    unread = list(request.prompt[:-1])  # by the draft
    fresh, position = request.prompt[-1:], request.root_position
    while True:
        layers, nodes = Layers(fresh, position=position, fuzzy=fuzzy, is_exact=is_exact), list[int]()
        if (yield from read_unread(unread, position - len(fresh) + 1)):
            nodes = yield from draft(layers)
        log_probs = tuple(layers.scores[node] for node in nodes) if are_log_probs else ()
        path, tokens, finished = yield from colocated_round(request, layers.subtree(nodes), log_probs)
        if finished:
            return
        kept = layers.kept([nodes[index - 1] for index in path[1:]])
        fresh = (fresh + tokens)[len(kept) :]
        if kept:
            yield KeepKV(Role.DRAFT, kept, len(kept))
        else:
            unread += fresh[:-1]
            fresh = fresh[-1:]
        position += len(tokens)
