"""PEARL (ICLR 2025, arXiv 2408.11850): drafting the next window overlaps the verification of the last one.

Both roles work in lock step. While the target verifies the pending tokens, the draft appends a window of K tokens; then
they exchange messages. Draft to target: everything drafted after the last verified token. Target to draft: accepted
tokens and the bonus token. If the bonus token is the window's first (so a window's first token verifies the token
before it, and no bonus is lost), the rest of the window is pending next: *post-verify*, K rows a round. Otherwise all
drafted tokens are discarded and nothing is pending: *pre-verify*, one row, which checks the next window's first token.

The paper's adaptive draft length is the number of windows between two rejections; K itself is fixed, best near the cost
of a verification in draft forwards. Unlike in the released code, tokens count only once verified, and generation stops
at an end of sequence.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import ChainShape, Fields, Grid, Layout
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.request import Request
from swiftspec.policies.verification import exchange, expand, planted, verify_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Pearl(ChainShape):
    """A window of `num_draft_tokens` tokens per round."""

    name: ClassVar[str] = "pearl"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    grid: ClassVar[Grid] = {"num_draft_tokens": (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24)}
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4}

    num_draft_tokens: int = 8

    @property
    def target_rows(self) -> int:
        return self.num_draft_tokens

    @property
    def draft_rows(self) -> int:
        # Pending tokens and the window after them, in addition to the two rows of a miss.
        return 2 * self.num_draft_tokens + 2

    def programs(self, request: Request) -> dict[Role, Program]:
        return {
            Role.TARGET: verify_windows(request, max_rows=2 * self.num_draft_tokens, max_pending=self.target_rows),
            Role.DRAFT: _draft(request, self),
        }


def _draft(request: Request, shape: Pearl) -> Program:
    tree = yield from planted(request, capacity=shape.draft_rows)
    while True:
        for _ in range(shape.num_draft_tokens):
            yield from expand(tree, 1, 1)
        if (yield from exchange(tree, tree.best(2 * shape.num_draft_tokens))) is None:
            return
