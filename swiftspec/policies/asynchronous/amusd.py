"""AMUSD (arXiv 2410.17375): a draft that never stops, and a target that verifies whatever tokens have arrived.

The draft decodes on its own, one token after another, and sends each one immediately. As soon as the target is free and
has `lookahead` unverified tokens, it verifies all of them. Draft to target: a token and the one before it. Target to
draft: accepted tokens and the bonus token. Where these differ from its chain, the draft rolls back to the difference
and discards everything after it, including what it drafted meanwhile. Full acceptance costs nothing if the draft
continued with the bonus token.

The released code counts rollbacks to keep stale tokens from being verified; here every token names its predecessor, and
the target drops those that do not continue its chain. Stale tokens arrive before their replacements.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from swiftspec.policies.base import Fields, Grid, Layout, Shape, check_shape
from swiftspec.policies.effects import (
    DraftForward,
    KeepKV,
    PeerError,
    Poll,
    Program,
    Receive,
    Role,
    Send,
    Stop,
    Subprogram,
    as_verdict,
    prefill,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Subtree
from swiftspec.policies.verification import planted, verify_drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class Amusd(Shape):
    """Parameters of the asynchronous chain.

    lookahead: draft tokens the target waits for. verify_rows: most rows of a verification, the root included; further
    tokens wait for the next one.
    """

    name: ClassVar[str] = "amusd"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    verifies_trees: ClassVar[bool] = False
    grid: ClassVar[Grid] = {"verify_rows": (8, 16, 32), "lookahead": (1, 2, 4, 6)}
    profiled: ClassVar[Fields] = {"lookahead": 2, "verify_rows": 8}

    lookahead: int = 2
    verify_rows: int = 32

    def __post_init__(self) -> None:
        check_shape(self, lookahead=1, verify_rows=2)
        if self.lookahead >= self.verify_rows:
            raise ValueError(f"lookahead is {self.lookahead}; expected less than verify_rows ({self.verify_rows})")

    @property
    def target_rows(self) -> int:
        return self.verify_rows

    @property
    def draft_rows(self) -> int:
        # A chain under verification and another as long; then the draft waits.
        return 2 * self.verify_rows

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: _verify(request, self), Role.DRAFT: _draft(request, self)}


def _verify(request: Request, shape: Amusd) -> Program:
    yield from prefill(Role.TARGET, request.prompt[:-1])
    yield from verify_drafted(request, receive=partial(_waiting, shape))


def _waiting(shape: Amusd, root: int, position: int) -> Subprogram[Subtree]:
    """The chain of tokens that have arrived after the root: at least `lookahead` of them."""
    tokens = [root]
    num_stale = 0
    while len(tokens) < shape.verify_rows:
        message = (yield from Poll()) if len(tokens) > shape.lookahead else (yield from Receive())
        if message is None:
            break
        if not isinstance(message, Subtree) or message.parents != (-1, 0) or len(message.tokens) != 2:
            raise PeerError(f"expected a token after another, got {message!r}")
        before, token = message.tokens
        if (message.position, before) == (position + len(tokens) - 1, tokens[-1]):
            tokens.append(token)
            continue
        num_stale += 1
        if num_stale > 2 * shape.draft_rows:  # more than a draft can have sent before it reads a verdict
            raise PeerError(f"expected a token after {tokens[-1]}, got {num_stale} others")
    return Subtree.chain(position, tuple(tokens))


def _draft(request: Request, shape: Amusd) -> Program:
    tree = yield from planted(request, capacity=shape.draft_rows)
    while True:
        message = (yield from Poll()) if tree.can_grow else (yield from Receive())
        if message is None:
            rows = tree.pick(1)
            candidates = yield from DraftForward(rows, 1)
            tree.grow(candidates)
            yield Send(Subtree(rows[-1].position, (rows[-1].token, *candidates[-1].tokens), (-1, 0)))
            continue
        verdict = as_verdict(message)
        if isinstance(verdict, Stop):
            return
        tree.advance(verdict.tokens)
        yield KeepKV(Role.DRAFT, *tree.compact())
