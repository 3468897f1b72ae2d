"""Serial speculative decoding: draft and verify take turns on the same devices.

Sources: chains, Leviathan et al., arXiv 2211.17192; trees, SpecInfer (arXiv 2305.09781) and, for best-first growth by
cumulative log-prob, the serial arm of SwiftSpec's Table 7. A chain is a tree of one candidate per node: one program
serves both. A round lasts expansions * (draft forward) + (verification); nothing is drafted while the target works.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from swiftspec.policies.base import ChainShape, Layout, Shape, check_shape
from swiftspec.policies.effects import (
    Commit,
    KeepKV,
    Program,
    Role,
    Step,
    Subtree,
    prefill,
    read_unread,
    target_forward,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import TokenTree
from swiftspec.policies.trees.masked_tree import MaskedTree
from swiftspec.policies.verification import expand, follow

__all__ = ["Quotes", "SerialChain", "SerialTree", "serial_rounds", "tree_rounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialTree(Shape):
    """Grow a tree by `expansions` draft forwards, verify its best `verify_rows` nodes, keep what survives the verdict.

    Parameters
    ----------
    verify_rows : int
        Rows of a verification, the root included.
    expand_rows : int
        Leaves forwarded per expansion.
    expansions : int
        Draft forwards per round.
    num_candidates : int
        Children kept per node.
    draft_temperature : float
        Temperature of the draft's probabilities that order the tree; a planner fits it to the trace.
    """

    name: ClassVar[str] = "serial_tree"
    layout: ClassVar[Layout] = Layout.COLOCATED
    elastic: ClassVar[bool] = True

    verify_rows: int = 8
    expand_rows: int = 4
    expansions: int = 4
    num_candidates: int = 8
    draft_temperature: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, expand_rows=1, expansions=1, num_candidates=1)

    @property
    def target_rows(self) -> int:
        return self.verify_rows

    @property
    def draft_rows(self) -> int:
        # Nodes added in a round and as many survivors of earlier rounds (with more, the tree would skip expansions),
        # and the two rows of a miss.
        return 2 * self.expansions * self.expand_rows + 2

    @property
    def least_target_rows(self) -> int:
        # Each expansion forwards at least one row and adds num_candidates nodes below it.
        return min(self.verify_rows, 1 + self.expansions * self.num_candidates)

    @property
    def serial_forwards(self) -> int:
        return self.expansions

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: serial_rounds(request, self)}

    @property
    def verifies_trees(self) -> bool:
        return True

    @classmethod
    def search_space(cls) -> Iterator["SerialTree"]:
        for verify_rows in (4, 8, 12, 16, 24, 32):
            for expand_rows in (2, 4, 8):
                for expansions in (2, 3, 4, 5, 6, 8, 10):
                    if verify_rows <= 1 + expansions * expand_rows * 2:
                        yield cls(verify_rows=verify_rows, expand_rows=expand_rows, expansions=expansions)

    @classmethod
    def host_shapes(cls) -> Iterator["SerialTree"]:
        yield cls(verify_rows=4, expand_rows=1, expansions=4)
        yield cls(verify_rows=8, expand_rows=4, expansions=4)
        yield cls(verify_rows=16, expand_rows=8, expansions=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialChain(ChainShape):
    """Draft `num_draft_tokens` one after another, verify them and the root together."""

    name: ClassVar[str] = "serial_chain"
    layout: ClassVar[Layout] = Layout.COLOCATED
    elastic: ClassVar[bool] = True

    num_draft_tokens: int = 4

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1)

    @property
    def tree(self) -> SerialTree:
        """The chain as a tree of one candidate per node."""
        length = self.num_draft_tokens
        return SerialTree(verify_rows=length + 1, expand_rows=1, expansions=length, num_candidates=1)

    @property
    def target_rows(self) -> int:
        return self.tree.target_rows

    @property
    def draft_rows(self) -> int:
        return self.tree.draft_rows

    @property
    def serial_forwards(self) -> int:
        return self.num_draft_tokens

    def programs(self, request: Request) -> dict[Role, Program]:
        return self.tree.programs(request)

    @classmethod
    def search_space(cls) -> Iterator["SerialChain"]:
        for num_draft_tokens in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15):
            yield cls(num_draft_tokens=num_draft_tokens)

    @classmethod
    def host_shapes(cls) -> Iterator["SerialChain"]:
        yield cls(num_draft_tokens=4)


class Quotes(Protocol):
    """Continuations found in the text, which spare a round its draft."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Add output."""

    def subtree(self, position: int) -> Subtree | None:
        """The continuation below the text's last token, at `position`; None if the draft is worth more."""

    def finish(self, tokens: Iterable[int]) -> None:
        """Add the last output."""


def serial_rounds(request: Request, shape: SerialTree, quotes: Quotes | None = None) -> Program:
    """Rounds of a serial draft's trees, or of `quotes`."""
    tree = TokenTree(
        request.prompt[-1],
        position=request.root_position,
        capacity=shape.draft_rows,
        temperature=shape.draft_temperature,
    )
    draft = partial(_draft, tree, shape)
    yield from tree_rounds(request, tree, draft, verify_rows=shape.verify_rows, quotes=quotes)


def tree_rounds(
    request: Request,
    tree: TokenTree | MaskedTree,
    draft: Callable[[list[int]], Step[None]],
    *,
    verify_rows: int,
    least_probability: float = 0.0,
    quotes: Quotes | None = None,
) -> Program:
    """Rounds of a co-located policy: grow the tree, verify its best nodes; or what `quotes` has, if the tree is empty.

    draft: grows the tree, which is only the root at first; it is given the verified tokens that the draft has not read.
    least_probability: as of `TokenTree.best`.
    A round of `quotes` must not throw drafted nodes away: residual sampling is exact only if a node that was drawn is
    verified or not whatever its token.
    """
    yield from prefill(Role.TARGET, request.prompt[:-1])
    unread = list(request.prompt[:-1])  # by the draft
    num_generated = 0
    while True:
        subtree = quotes.subtree(tree.position) if quotes and tree.is_bare else None
        if subtree is None:
            yield from draft(unread)
            subtree = tree.best(verify_rows, least_probability=least_probability)
        choices = yield from target_forward(subtree.rows())
        path, verified = follow(subtree, choices)
        tokens, finished = request.clip(verified, num_generated=num_generated)
        yield Commit(tokens)
        if finished:
            break
        yield KeepKV(Role.TARGET, path, len(path))
        tree.advance(tokens)
        if tree.num_slots:
            yield KeepKV(Role.DRAFT, *tree.compact())
        else:
            unread += tree.take_unread()
        if quotes:
            quotes.extend(tokens)
        num_generated += len(tokens)
    if quotes:
        quotes.finish(tokens)


def _draft(tree: TokenTree, shape: SerialTree, unread: list[int]) -> Step[None]:
    """The expansions of a round, or the first ones. Where earlier rounds had none, the draft first reads their text."""
    if not (yield from read_unread(unread, tree.position)):
        return
    for level in range(1, shape.expansions + 1):
        if tree.can_grow and not (yield from expand(tree, shape.expand_rows, shape.num_candidates, level=level)):
            return
