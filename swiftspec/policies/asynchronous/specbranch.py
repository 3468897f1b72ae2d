"""SpecBranch (ICLR 2026, arXiv 2506.01979): PEARL that forks where the draft is unsure.

As in PEARL the draft appends a window to the tokens under verification, in lock step. A window ends before the first
token that the draft gives less than `least_confidence`: a chain most likely breaks there, and later tokens would be
rolled back. The next window starts with several versions of that token, the fewer the surer the draft is, and drafts
all of them in one batch while the target verifies up to the fork. The version that the target chooses continues; the
others are discarded, or all of them after a rejection before the fork. Draft to target: everything drafted after the
last verified token. Target to draft: accepted tokens and the bonus token.

The paper also uses a small network on the target's hidden states to decide how far to trust a window; this is the part
that needs no training. The released code's windows never end early and always fork at their first token.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import ChainShape, Fields, Grid, Layout, check_shape
from swiftspec.policies.effects import Candidates, DraftForward, Program, Role, Subprogram
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Subtree, TokenTree
from swiftspec.policies.verification import exchange, planted, verify_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecBranch(ChainShape):
    """Parameters of the forking windows.

    num_draft_tokens: tokens of a window, at most. branches: versions of a token at a fork, at most. least_confidence:
    probability of a token, by the draft, below which a window ends before it.
    """

    name: ClassVar[str] = "specbranch"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    grid: ClassVar[Grid] = {"num_draft_tokens": (4, 8, 12, 16), "branches": (2, 4, 8), "least_confidence": (0.0, 0.4)}
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4, "branches": 4}

    num_draft_tokens: int = 8
    branches: int = 4
    least_confidence: float = 0.4

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, branches=1)
        if not 0 <= self.least_confidence <= 1:
            raise ValueError(f"least_confidence is {self.least_confidence}; expected a probability")

    @property
    def draft_rows(self) -> int:
        # Pending tokens, a window after them in every version, and the two rows of a miss.
        return self.num_draft_tokens * (self.branches + 1) + 3

    @property
    def expand_rows(self) -> int:
        return max(2, self.branches)

    @property
    def num_candidates(self) -> int:
        return self.branches

    def programs(self, request: Request) -> dict[Role, Program]:
        target = verify_windows(request, max_rows=self.draft_rows + self.branches, max_pending=self.target_rows)
        return {Role.TARGET: target, Role.DRAFT: _draft(request, self)}


def _draft(request: Request, shape: SpecBranch) -> Program:
    tree = yield from planted(request, capacity=shape.draft_rows)
    forked = False  # whether the tree ends in versions of a token that no window has extended yet
    while True:
        window, forked = yield from _window(tree, shape, forked=forked)
        is_hit = yield from exchange(tree, window)
        if is_hit is None:
            return
        forked &= is_hit  # after a miss nothing is left, in particular no fork


def _window(tree: TokenTree, shape: SpecBranch, *, forked: bool) -> Subprogram[tuple[Subtree, bool]]:
    """Grow the tree by a window. Returns everything that may be verified, and whether a fork follows it."""
    everything = shape.draft_rows + shape.branches
    for _ in range(shape.num_draft_tokens):
        rows = tree.pick(shape.branches)
        answers = yield from DraftForward(rows, shape.branches)
        best = answers[0]
        sure = math.exp(best.logprobs[0])
        if forked and sure < shape.least_confidence:
            # Rows come best first: the first one's chain is the most likely, and forks here; the others continue.
            window = tree.best(everything)
            tree.grow((_top(best, _num_versions(shape, sure)), *(_top(other, 1) for other in answers[1:])))
            return window, True
        if forked:
            tree.grow([_top(answer, 1) for answer in answers])
        else:
            # The window's first token: rows before it, if any, are verified ones and take no candidates.
            tree.grow((*answers[:-1], _top(answers[-1], _num_versions(shape, math.exp(answers[-1].logprobs[0])))))
            forked = True
    return tree.best(everything), False


def _num_versions(shape: SpecBranch, sure: float) -> int:
    return max(1, int(shape.branches * (1 - sure)))


def _top(candidates: Candidates, count: int) -> Candidates:
    return Candidates(candidates.tokens[:count], candidates.logprobs[:count])
