"""MineDraft (ICML 2026, arXiv 2603.18016): while one half of the requests is verified, chains of the other are drafted.

A request's own rounds are serial, as those of `serial_chain`: a chain of K tokens, its verification, nothing beside it.
But each model has devices of its own, and the requests that run are two batches, which take turns: `num_batches` tells
the scheduler. So drafting costs no time as long as K draft forwards take no longer than a verification, and no token is
drafted on a guess of what the target will choose. One request alone has no use for it.

The paper assigns a request to a batch for as long as it runs. Here whoever is ready first is verified first, at most
half of them at once.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import ChainShape, Fields, Grid, Layout
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.request import Request
from swiftspec.policies.verification import exchange, expand, planted, verify_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class MineDraft(ChainShape):
    """A chain of `num_draft_tokens` tokens per round."""

    name: ClassVar[str] = "minedraft"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    elastic: ClassVar[bool] = True
    num_batches: ClassVar[int] = 2
    searched: ClassVar[bool] = False
    grid: ClassVar[Grid] = {"num_draft_tokens": (1, 2, 3, 4, 5, 6, 8, 10)}
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4}

    num_draft_tokens: int = 4

    @property
    def draft_rows(self) -> int:
        return self.num_draft_tokens + 2  # a chain in addition to the two rows of a miss

    @property
    def serial_forwards(self) -> int:
        return self.num_draft_tokens

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: verify_rounds(request, max_rows=self.target_rows), Role.DRAFT: _draft(request, self)}


def _draft(request: Request, shape: MineDraft) -> Program:
    tree = yield from planted(request, capacity=shape.draft_rows)
    while True:
        # Of a verification that was granted a part of its rows, the rest of the chain is left.
        while len((chain := tree.best_chain(shape.target_rows)).tokens) < shape.target_rows:
            yield from expand(tree, 1, 1)
        if (yield from exchange(tree, chain)) is None:
            return
