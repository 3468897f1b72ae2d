"""A tree from one forward of a parallel draft: products of the distributions of the next positions.

As `parallel_chain`, with the best nodes of a tree in place of the chain of first choices. Each position has the same
candidates in all branches, so a path's probability is the product of its tokens'; the likeliest paths are verified.
Published under the name DDTree for block drafts (arXiv 2604.12989).

Paths less likely than `least_probability` are not verified, so that a verification has as many rows as the draft is
sure of. Where every row costs the same time, that is the best choice of rows: a row is worth it if its probability is
more than its time multiplied by the tokens per second that are reached otherwise, whatever the other rows are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from swiftspec.policies.base import DraftKind, Fields, Layout, TreeShape, check_positive, check_shape, shapes
from swiftspec.policies.colocated import tree_rounds
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.request import Request
from swiftspec.policies.trees.masked_tree import MaskedTree
from swiftspec.policies.verification import expand_masked


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelTree(TreeShape):
    """Grow a tree by one draft forward, verify its best `verify_rows` nodes.

    num_masks: positions after the next one for which candidates are drafted.
    num_candidates: candidates per position.
    verify_rows, least_probability, draft_temperature: as of `SwiftSpec`.
    """

    name: ClassVar[str] = "parallel_tree"
    layout: ClassVar[Layout] = Layout.COLOCATED
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.PARALLEL, DraftKind.BLOCK})
    elastic: ClassVar[bool] = True
    serial_forwards: ClassVar[int] = 1
    profiled: ClassVar[Fields] = {"verify_rows": 8, "num_masks": 4}

    verify_rows: int = 12
    least_probability: float = 0.0
    num_masks: int = 6
    num_candidates: int = 8
    draft_temperature: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, num_masks=1, num_candidates=1)
        check_positive(self, "draft_temperature")
        if not 0 <= self.least_probability < 1:
            raise ValueError(f"least_probability is {self.least_probability}; expected at least 0 and below 1")

    @property
    def draft_levels(self) -> int:
        return self.num_masks + 1

    @property
    def draft_rows(self) -> int:
        # A round's accepted nodes, its bonus token and the masks; there are no other nodes.
        return self.verify_rows + self.num_masks

    @property
    def expand_rows(self) -> int:
        return self.draft_rows

    def programs(self, request: Request) -> dict[Role, Program]:
        tree = MaskedTree(
            request.prompt[-1],
            position=request.root_position,
            capacity=self.verify_rows,
            mask_token=request.mask_token,
            num_masks=self.num_masks,
            temperature=self.draft_temperature,
        )
        grow = partial(expand_masked, tree, 1, self.num_candidates, level=1)
        rounds = tree_rounds(
            request, tree, grow, verify_rows=self.verify_rows, least_probability=self.least_probability
        )
        return {Role.TARGET: rounds}

    @classmethod
    def search_space(cls) -> Iterator["ParallelTree"]:
        yield from shapes(cls, verify_rows=(4, 8, 12, 16, 24, 32), num_masks=(2, 3, 5, 7))
        yield from shapes(cls, verify_rows=(8, 16), num_masks=(3, 7), least_probability=(0.1, 0.25))
