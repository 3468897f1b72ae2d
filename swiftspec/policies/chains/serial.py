"""Serial speculative decoding: draft and verify take turns on the same devices.

Sources: chains, Leviathan et al., arXiv 2211.17192; trees, SpecInfer (arXiv 2305.09781) and, for best-first growth by
cumulative log-prob, the serial arm of SwiftSpec's Table 7. A chain is a tree of one candidate per node: one program
serves both. A round lasts expansions * (draft forward) + (verification); nothing is drafted while the target works.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from swiftspec.policies.base import ChainShape, Grid, Layout, TreeShape, check_positive, check_shape, shapes
from swiftspec.policies.colocated import Text, tree_rounds
from swiftspec.policies.effects import Program, Role, Subprogram
from swiftspec.policies.request import Request
from swiftspec.policies.tree import TokenTree
from swiftspec.policies.verification import expand


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialTree(TreeShape):
    """Grow a tree by `expansions` draft forwards, verify its best `verify_rows` nodes, keep what survives the verdict.

    verify_rows: rows of a verification, the root included.
    expand_rows: leaves forwarded per expansion.
    expansions: draft forwards per round.
    num_candidates: children kept per node.
    draft_temperature: temperature of the draft's probabilities that order the tree; a planner fits it to the trace.
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
        check_positive(self, "draft_temperature")

    @property
    def draft_rows(self) -> int:
        # Nodes added in a round and as many survivors of earlier rounds (with more, the tree would skip expansions),
        # and the two rows of a miss.
        return 2 * self.expansions * self.expand_rows + 2

    @property
    def serial_forwards(self) -> int:
        return self.expansions

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: serial_rounds(request, self)}

    @classmethod
    def search_space(cls) -> Iterator["SerialTree"]:
        rows, expansions = (4, 8, 12, 16, 24, 32), (2, 3, 4, 5, 6, 8, 10)
        found = shapes(cls, verify_rows=rows, expand_rows=(2, 4, 8), expansions=expansions)
        return (shape for shape in found if shape.verify_rows <= 1 + shape.expansions * shape.expand_rows * 2)

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
    grid: ClassVar[Grid] = {"num_draft_tokens": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15)}

    num_draft_tokens: int = 4

    @property
    def tree(self) -> SerialTree:
        """The chain as a tree of one candidate per node."""
        length = self.num_draft_tokens
        return SerialTree(verify_rows=length + 1, expand_rows=1, expansions=length, num_candidates=1)

    @property
    def draft_rows(self) -> int:
        return self.tree.draft_rows

    def programs(self, request: Request) -> dict[Role, Program]:
        return self.tree.programs(request)


def serial_rounds(request: Request, shape: SerialTree, text: Text | None = None) -> Program:
    """Rounds of a serial draft's trees, or of continuations of a text."""
    tree = TokenTree(
        request.prompt[-1],
        position=request.root_position,
        capacity=shape.draft_rows,
        temperature=shape.draft_temperature,
    )
    return tree_rounds(request, tree, partial(_grow, tree, shape), verify_rows=shape.verify_rows, text=text)


def _grow(tree: TokenTree, shape: SerialTree) -> Subprogram[None]:
    for level in range(1, shape.expansions + 1):
        if tree.can_grow and not (yield from expand(tree, shape.expand_rows, shape.num_candidates, level=level)):
            return
