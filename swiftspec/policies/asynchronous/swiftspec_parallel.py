"""SwiftSpec with a parallel draft: an asynchronous tree that grows by several levels per draft forward.

As `swiftspec`, the draft grows one token tree on its own devices while the target verifies the best subtree on its own.
An expansion forwards the best nodes that were not forwarded yet, and masks below the best leaves of these. So it
replaces the marginals that such nodes were known by with candidates of their own, and adds levels of marginals below
them. After a miss one forward gives a tree of `num_masks` + 1 levels, where a serial draft's has one; and the tree
deepens by as much while the target works, however few forwards fit in.

The target's program and the messages are those of `swiftspec`: token ids only, in both directions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from swiftspec.policies.asynchronous.swiftspec import draft_rounds
from swiftspec.policies.base import DraftKind, Layout, TreeShape, check_positive, check_shape, shapes
from swiftspec.policies.effects import Program, Role, prefill
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Subtree
from swiftspec.policies.trees.masked_tree import MaskedTree
from swiftspec.policies.verification import expand_masked, verify_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftSpecParallel(TreeShape):
    """Parameters of the asynchronous tree; others as of `SwiftSpec`.

    expand_nodes: tokens forwarded per expansion, in addition to verified ones that the draft lacks.
    expand_leaves: leaves of these with masks below.
    num_masks: masks below a leaf.
    """

    name: ClassVar[str] = "swiftspec_parallel"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.PARALLEL})
    elastic: ClassVar[bool] = True
    keeps_tree: ClassVar[bool] = True

    verify_rows: int = 8
    least_probability: float = 0.0
    expand_nodes: int = 6
    expand_leaves: int = 1
    num_masks: int = 5
    num_candidates: int = 8
    tree_capacity: int = 128
    draft_temperature: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, expand_nodes=1, expand_leaves=1, num_masks=1, num_candidates=1)
        check_positive(self, "draft_temperature")
        if not 0 <= self.least_probability < 1:
            raise ValueError(f"least_probability is {self.least_probability}; expected at least 0 and below 1")
        if self.tree_capacity < self.verify_rows:
            raise ValueError(
                f"tree_capacity is {self.tree_capacity}; expected at least verify_rows ({self.verify_rows})"
            )

    @property
    def expand_rows(self) -> int:
        return self.expand_nodes + self.expand_leaves * self.num_masks

    @property
    def draft_rows(self) -> int:
        return self.tree_capacity + self.expand_leaves * self.num_masks

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: verify_rounds(request, max_rows=self.verify_rows), Role.DRAFT: self._draft(request)}

    def _draft(self, request: Request) -> Program:
        yield from prefill(Role.DRAFT, request.prompt[:-1])
        tree = MaskedTree(
            request.prompt[-1],
            position=request.root_position,
            capacity=self.tree_capacity,
            mask_token=request.mask_token,
            num_masks=self.num_masks,
            num_leaves=self.expand_leaves,
            temperature=self.draft_temperature,
        )

        def is_enough(subtree: Subtree) -> bool:
            """Whether the root has candidates of its own, and there are enough nodes, or none below is worth a row."""
            return not tree.is_bare and (self.least_probability > 0 or len(subtree.tokens) == self.verify_rows)

        yield from draft_rounds(
            tree,
            expand=partial(expand_masked, tree, self.expand_nodes, self.num_candidates),
            best=partial(tree.best, self.verify_rows, least_probability=self.least_probability),
            is_enough=is_enough,
        )

    @classmethod
    def search_space(cls) -> Iterator["SwiftSpecParallel"]:
        yield from shapes(cls, verify_rows=(4, 6, 8, 12, 16), expand_nodes=(3, 6, 12), num_masks=(2, 4, 7))
        yield from shapes(cls, verify_rows=(8, 16), expand_nodes=(6, 12), least_probability=(0.05, 0.15))
