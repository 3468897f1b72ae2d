"""SwiftSpec (ASPLOS'26, arXiv 2506.11309): asynchronous, disaggregated tree drafting.

The draft grows one token tree on its own devices, without pause; the target verifies the best subtree on its own.
Draft to target: `verify_rows` token ids and parents. Target to draft: accepted tokens and the bonus token. A verdict
re-roots the tree, and nothing that survives is computed again; only what lies off the verified path is thrown away.

Beyond the paper: expansions stop as soon as the verdict is there instead of after a fixed count; the next subtree
leaves before the caches are compacted, so that on a hit nothing but the walk lies between two verifications; the draft
grows its first tree while the target is still at its prefill.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import Layout, Shape, check_shape
from swiftspec.policies.effects import (
    KeepKV,
    Message,
    Program,
    Role,
    Send,
    Step,
    Stop,
    as_verdict,
    poll,
    prefill,
    receive,
)
from swiftspec.policies.verification import Request, expand, verify_rounds
from swiftspec.tree import TokenTree

__all__ = ["SwiftSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftSpec(Shape):
    """Parameters of the asynchronous tree.

    Parameters
    ----------
    verify_rows : int
        Rows of a verification, the root included.
    expand_rows : int
        Leaves forwarded per expansion.
    num_candidates : int
        Children kept per node; with `verify_rows` - 1 of them a miss costs one draft forward.
    tree_capacity : int
        Most forwarded nodes the draft holds; at the bound it waits for the verdict.
    draft_temperature : float
        At which the draft's probabilities order the tree; a planner fits it to the trace.
    """

    name: ClassVar[str] = "swiftspec"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED

    verify_rows: int = 8
    expand_rows: int = 4
    num_candidates: int = 8
    tree_capacity: int = 160
    draft_temperature: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, expand_rows=1, num_candidates=1)
        if self.tree_capacity < self.verify_rows:
            raise ValueError(
                f"tree_capacity is {self.tree_capacity}; expected at least verify_rows ({self.verify_rows})"
            )

    @property
    def target_rows(self) -> int:
        return self.verify_rows

    @property
    def draft_rows(self) -> int:
        return self.tree_capacity

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: verify_rounds(request, max_rows=self.verify_rows), Role.DRAFT: _draft(request, self)}

    @classmethod
    def search_space(cls) -> Iterator["SwiftSpec"]:
        for verify_rows in (4, 6, 8, 10, 12, 16, 24):
            for expand_rows in (2, 4, 8, 12):
                for num_candidates in sorted({8, max(8, verify_rows - 1)}):
                    yield cls(verify_rows=verify_rows, expand_rows=expand_rows, num_candidates=num_candidates)


def _draft(request: Request, shape: SwiftSpec) -> Program:
    yield from prefill(Role.DRAFT, request.prompt[:-1])
    tree = TokenTree(
        request.prompt[-1],
        position=request.root_position,
        capacity=shape.tree_capacity,
        temperature=shape.draft_temperature,
    )
    while True:
        verdict = as_verdict((yield from _grow_until_verdict(tree, shape)))
        if isinstance(verdict, Stop):
            return
        tree.advance(verdict.tokens)
        subtree = tree.best(shape.verify_rows)
        if ready := len(subtree.tokens) == shape.verify_rows:
            yield Send(subtree)
        yield KeepKV(Role.DRAFT, *tree.compact())
        if not ready:
            yield from _regrow(tree, shape)


def _grow_until_verdict(tree: TokenTree, shape: SwiftSpec) -> Step[Message]:
    """Expand without pause; a verdict is noticed after the expansion in progress."""
    while tree.can_grow:
        message = yield from poll()
        if message is not None:
            return message
        yield from expand(tree, shape.expand_rows, shape.num_candidates)
    return (yield from receive())


def _regrow(tree: TokenTree, shape: SwiftSpec) -> Step[None]:
    """After a miss, or a hit on a bare leaf: expand until there is enough to verify, as far as the tree can."""
    while len((subtree := tree.best(shape.verify_rows)).tokens) < shape.verify_rows and tree.can_grow:
        yield from expand(tree, shape.expand_rows, shape.num_candidates)
    yield Send(subtree)
