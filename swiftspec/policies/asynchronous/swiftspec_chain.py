"""SwiftSpec for a target that verifies chains only: the draft keeps its tree, and sends the best path of it.

Most engines, and layers that keep a state, verify no trees. The tree still pays: what a verdict leaves of it is the
next chain, where a chain alone would be lost at its first wrong token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

from swiftspec.policies.asynchronous.swiftspec import draft_rounds
from swiftspec.policies.base import ChainShape, Layout, check_positive, check_shape
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.request import Request
from swiftspec.policies.verification import expand, planted, verify_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftSpecChain(ChainShape):
    """Parameters of the asynchronous tree.

    num_draft_tokens: most tokens of a chain. least_draft_tokens: fewest; each costs a draft forward after a miss.
    expand_rows, num_candidates, tree_capacity, draft_temperature: as of `SwiftSpec`.
    """

    name: ClassVar[str] = "swiftspec_chain"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    elastic: ClassVar[bool] = True
    keeps_tree: ClassVar[bool] = True
    searched: ClassVar[bool] = False  # where trees are verified, one is as good

    num_draft_tokens: int = 6
    least_draft_tokens: int = 2
    expand_rows: int = 4
    num_candidates: int = 4
    tree_capacity: int = 160
    draft_temperature: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, least_draft_tokens=1, expand_rows=1, num_candidates=1)
        check_shape(self, tree_capacity=self.num_draft_tokens + 1)
        check_positive(self, "draft_temperature")
        if self.least_draft_tokens > self.num_draft_tokens:
            raise ValueError(
                f"least_draft_tokens is {self.least_draft_tokens}; expected at most num_draft_tokens "
                f"({self.num_draft_tokens})"
            )

    @property
    def draft_rows(self) -> int:
        return self.tree_capacity

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: verify_rounds(request, max_rows=self.target_rows), Role.DRAFT: self._draft(request)}

    def _draft(self, request: Request) -> Program:
        tree = yield from planted(request, capacity=self.tree_capacity, temperature=self.draft_temperature)
        yield from draft_rounds(
            tree,
            expand=partial(expand, tree, self.expand_rows, self.num_candidates),
            best=partial(tree.best_chain, self.target_rows),
            is_enough=lambda chain: len(chain.tokens) > self.least_draft_tokens,
        )

    @classmethod
    def search_space(cls) -> Iterator["SwiftSpecChain"]:
        for num_draft_tokens, least, expand_rows in product((3, 5, 8, 12), (1, 2, 4), (2, 4, 8)):
            if least <= num_draft_tokens:
                yield cls(num_draft_tokens=num_draft_tokens, least_draft_tokens=least, expand_rows=expand_rows)

    @classmethod
    def host_shapes(cls) -> Iterator["SwiftSpecChain"]:
        yield cls(num_draft_tokens=4, expand_rows=1)
        yield cls(num_draft_tokens=8, expand_rows=4)
