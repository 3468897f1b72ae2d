"""Distributed speculative inference, DSI (ICLR 2025, arXiv 2405.14105): several verifications in flight at once.

The draft decodes on its own and never waits while there is room. Every `num_draft_tokens` tokens, and at once after a
rejection, it hands all unverified tokens to a free target group. So verifications of successive blocks overlap, each
starting at the end of the group's cache. Draft to target: a chain. Target to draft: the target's token after each of
its rows. The draft follows these tokens; where they differ from its own, everything after is discarded.

The paper cancels verifications of discarded tokens. Here a group finishes them, and the result is ignored; with one
group for each block drafted during a verification, the group that reported the rejection is free, and another is by the
time there is a block for it. Their target also decodes on its own in parallel, so as never to be slower than without a
draft; here, handing over the bare root after a rejection does that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from swiftspec.policies.base import ChainShape, Grid, Layout, check_shape
from swiftspec.policies.effects import (
    Commit,
    KeepKV,
    Message,
    PeerError,
    Poll,
    ProbeReply,
    Program,
    Receive,
    Role,
    Send,
    Stop,
    Subprogram,
    Subtree,
    TargetForward,
    Verdict,
    prefill,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import TokenTree
from swiftspec.policies.verification import expand

_QUIET_COMMITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dsi(ChainShape):
    """Parameters of the overlapping verifications.

    num_draft_tokens: draft tokens from one verification to the next. target_groups: groups that verify, each with a
    copy of the target. verify_rows: most rows of a verification: tokens missing in a group's cache, and unverified
    ones.
    """

    name: ClassVar[str] = "dsi"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    searched: ClassVar[bool] = False
    grid: ClassVar[Grid] = {"target_groups": (2, 3, 4, 5, 6, 7), "num_draft_tokens": (1, 2, 3, 4, 6, 8)}

    num_draft_tokens: int = 2
    target_groups: int = 2
    verify_rows: int = 32

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, target_groups=2, verify_rows=2)

    @property
    def target_rows(self) -> int:
        return self.verify_rows

    @property
    def draft_rows(self) -> int:
        return self.verify_rows

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: _serve(request, self), Role.DRAFT: _ChainDraft(request, self).run()}


def _serve(request: Request, shape: Dsi) -> Program:
    """One group: a forward over every chain received, after the rows of the previous chain that are still valid."""
    yield from prefill(Role.TARGET, request.prompt[:-1])
    first, last = request.root_position, request.root_position  # range of positions where a chain may begin
    end = request.root_position + request.max_new_tokens
    while True:
        chain = yield from Receive()
        if isinstance(chain, Stop):
            return
        if isinstance(chain, ProbeReply):
            continue  # the draft is busy; there was nothing for this group
        if not _is_chain(chain, shape.verify_rows) or not first <= chain.position <= min(last, end):
            raise PeerError(
                f"expected a chain of 1 to {shape.verify_rows} tokens from position {first} to {last}, got {chain!r}"
            )
        num_kept = chain.position - first
        yield KeepKV(Role.TARGET, tuple(range(num_kept)), num_kept)
        choices = yield from TargetForward(chain.rows())
        first, last = chain.position, chain.position + len(chain.tokens)
        yield Send(Verdict(choices))


def _is_chain(message: Message, most_tokens: int) -> TypeGuard[Subtree]:
    return (
        isinstance(message, Subtree)
        and 1 <= len(message.tokens) <= most_tokens
        and message == Subtree.chain(message.position, message.tokens)
    )


class _TargetGroup:
    """State of a target group as the draft knows it: the last chain it was given, and whether that is unanswered."""

    def __init__(self, position: int) -> None:
        self.position = position  # of the chain's first token; the text before it is in the group's prefix
        self.chain: tuple[int, ...] = ()
        self.busy = False
        self.num_quiet = 0  # commits since it was last sent anything

    def has_seen(self, text: Sequence[int]) -> int:
        """Number of tokens of `text`, except its last one, that the group has in its cache."""
        num_seen = self.position
        for token, seen in zip(text[self.position : -1], self.chain, strict=False):
            if token != seen:
                break
            num_seen += 1
        return num_seen

    def covers(self, text: Sequence[int]) -> bool:
        """Whether the chain contains the end of `text`, so that its answers give the next token."""
        rest = tuple(text[self.position :])
        return self.chain[: len(rest)] == rest


class _ChainDraft:
    """The draft's side: one chain, drafted, handed over and followed. `text`: the prompt and all verified tokens."""

    def __init__(self, request: Request, shape: Dsi) -> None:
        self._request = request
        self._shape = shape
        self._text = list(request.prompt)
        self._tree = TokenTree(request.prompt[-1], position=request.root_position, capacity=shape.draft_rows)
        self._groups = [_TargetGroup(request.root_position) for _ in range(shape.target_groups)]
        self._in_flight: list[int] = []  # busy groups, in the order in which they will answer
        self._handed_over = request.root_position  # tokens that some group has verified, is verifying, or has rejected

    def run(self) -> Program:
        yield from prefill(Role.DRAFT, self._request.prompt[:-1])
        finished = False
        while not finished:
            yield from self._hand_over()
            number, choices = yield from self._listen()
            if choices:
                finished = yield from self._follow(self._groups[number], choices)
            elif self._tree.can_grow:
                yield from expand(self._tree, 1, 1)
        for number in range(len(self._groups)):
            yield Send(Stop(), number)

    def _hand_over(self) -> Subprogram[None]:
        """Give unverified tokens to the free group that has seen most, if a block is full or no group has the root."""
        free = [number for number, group in enumerate(self._groups) if not group.busy]
        if not free:
            return
        drafted = self._tree.best(self._shape.verify_rows).tokens[1:]
        new = len(self._text) + len(drafted) - self._handed_over
        covered = any(self._groups[number].covers(self._text) for number in self._in_flight)
        if covered and new < self._shape.num_draft_tokens:
            return
        number = max(free, key=lambda number: self._groups[number].has_seen(self._text))
        group = self._groups[number]
        group.position = group.has_seen(self._text)
        group.chain = (*self._text[group.position :], *drafted)[: self._shape.verify_rows]
        group.busy = True
        group.num_quiet = 0
        self._in_flight.append(number)
        self._handed_over = max(self._handed_over, group.position + len(group.chain))
        yield Send(Subtree.chain(group.position, group.chain), number)

    def _listen(self) -> Subprogram[tuple[int, tuple[int, ...]]]:
        """A group and its answers, empty if there are none; waits for the oldest if there is no room to draft."""
        for number in self._in_flight:
            message = (yield from Poll(number)) if self._tree.can_grow else (yield from Receive(number))
            if message is not None:
                group = self._groups[number]
                self._in_flight.remove(number)
                group.busy = False
                if not isinstance(message, Verdict) or len(message.tokens) != len(group.chain):
                    raise PeerError(f"expected {len(group.chain)} tokens of group {number}, got {message!r}")
                return number, message.tokens
        return -1, ()

    def _follow(self, group: _TargetGroup, choices: tuple[int, ...]) -> Subprogram[bool]:
        """Verify along a group's answers, unless they concern discarded tokens; returns whether the output ends."""
        text = self._text
        if not group.covers(text):
            return False
        row = len(text) - 1 - group.position
        verified = [choices[row]]
        for token in group.chain[row + 1 :]:
            if token != verified[-1]:
                break
            row += 1
            verified.append(choices[row])
        tokens, finished = self._request.clip(verified, num_generated=len(text) - len(self._request.prompt))
        yield Commit(tokens)
        if finished:
            return True
        text += tokens
        if not self._tree.advance(tokens):
            self._handed_over = len(text) - 1
        yield KeepKV(Role.DRAFT, *self._tree.compact())
        yield from self._reassure()
        return False

    def _reassure(self) -> Program:
        """Send a sign of life to groups that have been idle for a while, or they would take the draft for dead."""
        for number, group in enumerate(self._groups):
            group.num_quiet += not group.busy
            if group.num_quiet >= _QUIET_COMMITS:
                group.num_quiet = 0
                yield Send(ProbeReply(len(self._text)), number)
