"""SwiftSpec (ASPLOS'26, arXiv 2506.11309): asynchronous, disaggregated tree drafting.

The draft grows one token tree on its own devices, without pause; the target verifies the best subtree on its own
devices. Draft to target: `verify_rows` token ids and parents. Target to draft: accepted tokens and the bonus token. A
verdict re-roots the tree; nothing that survives is recomputed, and only nodes off the verified path are discarded.

Beyond the paper: expansions stop as soon as the verdict arrives instead of after a fixed count; the next subtree is
sent before the caches are compacted, so that on a hit only the tree walk lies between two verifications; the draft
grows its first tree during the target's prefill. Two options decide when a verification is worth it: rows that are
unlikely to be accepted are left out, round by round, and after a miss the tree may grow deeper first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

from swiftspec.policies.base import Layout, TreeShape, check_positive, check_shape
from swiftspec.policies.effects import (
    KeepKV,
    Message,
    Poll,
    Program,
    Receive,
    Role,
    Send,
    Stop,
    Subprogram,
    Subtree,
    as_verdict,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import TokenTree
from swiftspec.policies.trees.masked_tree import MaskedTree
from swiftspec.policies.verification import expand, planted, verify_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftSpec(TreeShape):
    """Parameters of the asynchronous tree.

    verify_rows: most rows of a verification, the root included.
    least_probability: probability of acceptance below which a node is not worth its row; with 0 every verification has
        `verify_rows` rows.
    miss_expansions: fewest draft forwards between a miss and the next verification.
    expand_rows: leaves forwarded per expansion.
    num_candidates: children kept per node; with `verify_rows` - 1 of them a miss costs one draft forward.
    tree_capacity: most forwarded nodes in the draft's tree; at this limit it waits for the verdict.
    draft_temperature: temperature of the draft's probabilities that order the tree; a planner fits it to the trace.
    """

    name: ClassVar[str] = "swiftspec"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    elastic: ClassVar[bool] = True
    keeps_tree: ClassVar[bool] = True

    verify_rows: int = 8
    least_probability: float = 0.0
    miss_expansions: int = 1
    expand_rows: int = 4
    num_candidates: int = 8
    tree_capacity: int = 160
    draft_temperature: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, miss_expansions=1, expand_rows=1, num_candidates=1)
        check_positive(self, "draft_temperature")
        if not 0 <= self.least_probability < 1:
            raise ValueError(f"least_probability is {self.least_probability}; expected at least 0 and below 1")
        if self.tree_capacity < self.verify_rows:
            raise ValueError(
                f"tree_capacity is {self.tree_capacity}; expected at least verify_rows ({self.verify_rows})"
            )

    @property
    def draft_rows(self) -> int:
        return self.tree_capacity

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: verify_rounds(request, max_rows=self.verify_rows), Role.DRAFT: self._draft(request)}

    def _draft(self, request: Request) -> Program:
        tree = yield from planted(request, capacity=self.tree_capacity, temperature=self.draft_temperature)

        def is_enough(subtree: Subtree) -> bool:
            """Whether growing the tree would add nothing to a subtree, or nothing worth a row."""
            enough = self.least_probability > 0 and not tree.is_bare
            return enough or len(subtree.tokens) == self.verify_rows

        yield from draft_rounds(
            tree,
            expand=partial(expand, tree, self.expand_rows, self.num_candidates),
            best=partial(tree.best, self.verify_rows, least_probability=self.least_probability),
            is_enough=is_enough,
            miss_expansions=self.miss_expansions,
        )

    @classmethod
    def search_space(cls) -> Iterator["SwiftSpec"]:
        for verify_rows in (4, 6, 8, 10, 12, 16):
            for expand_rows in (2, 4, 8, 12):
                yield cls(verify_rows=verify_rows, expand_rows=expand_rows, num_candidates=max(8, verify_rows - 1))
        # If unlikely rows are left out, more may be likely, and a tree may be worth a second expansion after a miss.
        for verify_rows, expand_rows in product((8, 12, 16, 24), (4, 8, 12)):
            for least_probability, miss_expansions in product((0.05, 0.15), (1, 2)):
                yield cls(
                    verify_rows=verify_rows,
                    least_probability=least_probability,
                    miss_expansions=miss_expansions,
                    expand_rows=expand_rows,
                    num_candidates=max(8, verify_rows - 1),
                )

    @classmethod
    def host_shapes(cls) -> Iterator["SwiftSpec"]:
        yield cls(verify_rows=4, expand_rows=1)
        yield cls(verify_rows=8, expand_rows=4)
        yield cls(verify_rows=16, expand_rows=8, num_candidates=15)


def draft_rounds(
    tree: TokenTree | MaskedTree,
    *,
    expand: Callable[[], Subprogram[bool]],
    best: Callable[[], Subtree],
    is_enough: Callable[[Subtree], bool],
    miss_expansions: int = 1,
) -> Program:
    """The draft's half, after its prefill.

    tree: only the root.
    expand: grows the tree by one forward.
    best: the subtree to verify.
    is_enough: whether that is sent rather than the tree grown further.
    miss_expansions: fewest forwards once the tree has to be grown before anything is sent.
    """
    while True:
        verdict = as_verdict((yield from _grow_until_verdict(tree, expand)))
        if isinstance(verdict, Stop):
            return
        tree.advance(verdict.tokens)
        subtree = best()
        if ready := is_enough(subtree):
            yield Send(subtree)
        yield KeepKV(Role.DRAFT, *tree.compact())
        if ready:
            continue
        # A miss, or a hit on a bare leaf: expand until there is enough to verify, as far as the tree can.
        num_expansions = 0
        while tree.can_grow:
            yield from expand()
            num_expansions += 1
            if num_expansions >= miss_expansions and is_enough(best()):
                break
        yield Send(best())


def _grow_until_verdict(tree: TokenTree | MaskedTree, expand: Callable[[], Subprogram[bool]]) -> Subprogram[Message]:
    """Expand without pause; a verdict is noticed after the expansion in progress."""
    while tree.can_grow:
        message = yield from Poll()
        if message is not None:
            return message
        yield from expand()
    return (yield from Receive())
