"""Parallel drafting (PARD, arXiv 2504.18583): one draft forward proposes all tokens of a round.

The forward has the verified tokens that the draft lacks, then K - 1 mask tokens. The answer after the last verified
token is the first draft token, the answer after the k-th mask the one k further. They are verified as a chain. A round
lasts one draft forward and one verification, whatever K.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import ChainShape, DraftKind, Fields, Grid, Layout
from swiftspec.policies.colocated import colocated_round
from swiftspec.policies.effects import DraftForward, KeepKV, Program, Role, Subprogram, prefill, read_unread
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Subtree


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelChain(ChainShape):
    """Draft `num_draft_tokens` in one forward, verify them and the root together."""

    name: ClassVar[str] = "parallel_chain"
    layout: ClassVar[Layout] = Layout.COLOCATED
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.PARALLEL, DraftKind.BLOCK})
    elastic: ClassVar[bool] = True
    serial_forwards: ClassVar[int] = 1
    grid: ClassVar[Grid] = {"num_draft_tokens": (*range(1, 10), 11, 15)}
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4}

    num_draft_tokens: int = 6

    @property
    def draft_rows(self) -> int:
        # All of a round accepted, with the bonus token and the masks after it.
        return 2 * self.num_draft_tokens

    @property
    def expand_rows(self) -> int:
        return self.draft_rows

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: _rounds(request, self.num_draft_tokens)}


def _rounds(request: Request, num_draft_tokens: int) -> Program:
    yield from prefill(Role.TARGET, request.prompt[:-1])
    *unread, root = request.prompt  # by the draft
    position = request.root_position
    while True:
        drafted = yield from _draft(unread, root, position, num_draft_tokens, request.mask_token)
        _, tokens, finished = yield from colocated_round(request, Subtree.chain(position, (root, *drafted)))
        if finished:
            return
        unread.append(root)
        if drafted:
            yield KeepKV(Role.DRAFT, tuple(range(len(unread))), len(unread))
            unread.clear()
        unread += tokens[:-1]
        root = tokens[-1]
        position += len(tokens)


def _draft(
    unread: list[int], root: int, position: int, num_tokens: int, mask_token: int
) -> Subprogram[tuple[int, ...]]:
    """A round's draft tokens; none if the round does without.

    The prompt is read first, and what earlier rounds that did without have left, unless it is short.
    """
    is_read_apart = len(unread) > num_tokens or len(unread) == position
    if is_read_apart and not (yield from read_unread(unread, position)):
        return ()
    tokens = (*unread, root, *[mask_token] * (num_tokens - 1))
    answers = yield from DraftForward(Subtree.chain(position - len(unread), tokens).rows(), 1, level=1)
    return tuple(answer.tokens[0] for answer in answers[len(unread) :])
