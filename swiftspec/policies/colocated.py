"""Rounds of co-located policies: one program, which drafts and verifies in turn on the same devices.

The counterpart of `verification.verify_rounds`, the target's half where the draft has devices of its own.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from swiftspec.policies.effects import (
    Commit,
    KeepKV,
    Prefill,
    Program,
    Role,
    Subprogram,
    Subtree,
    TargetForward,
    prefill,
    read_unread,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import TokenTree
from swiftspec.policies.trees.masked_tree import MaskedTree
from swiftspec.policies.verification import follow


class RoundOutput(NamedTuple):
    """Result of a round.

    path: indices in the subtree of the root and the accepted nodes. tokens: of the output. finished: whether it ends.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    finished: bool


class Text(Protocol):
    """Text that an output may be continued from: at first the prompt."""

    def extend(self, tokens: tuple[int, ...], *, finished: bool) -> None:
        """Add output. finished: whether it ends with these tokens."""

    def subtree(self) -> Subtree:
        """The continuation to verify, under the text's last token; that token alone if there is none."""


def colocated_round(request: Request, subtree: Subtree, log_probs: tuple[float, ...] = ()) -> Subprogram[RoundOutput]:
    """Verify a subtree under the output's last token, commit what is accepted, and keep its KV at the target.

    log_probs: as of a `TargetForward`.
    """
    choices = yield from TargetForward(subtree.rows(), () if request.ratio_tested else log_probs)
    path, verified = follow(subtree, choices)
    tokens, finished = request.clip(verified, num_generated=subtree.position - request.root_position)
    yield Commit(tokens)
    if not finished:
        yield KeepKV(Role.TARGET, path, len(path))
    return RoundOutput(path, tokens, finished)


def text_rounds(request: Request, text: Text) -> Program:
    """Rounds without a draft model, which verify continuations of a text. The first token comes from the prefill."""
    token: int = yield Prefill(Role.TARGET, request.prompt)
    tokens, finished = request.clip((token,), num_generated=0)
    yield Commit(tokens)
    while not finished:
        text.extend(tokens, finished=False)
        _, tokens, finished = yield from colocated_round(request, text.subtree())
    text.extend(tokens, finished=True)


def tree_rounds(
    request: Request,
    tree: TokenTree | MaskedTree,
    grow: Callable[[], Subprogram[object]],
    *,
    verify_rows: int,
    least_probability: float = 0.0,
    text: Text | None = None,
) -> Program:
    """Rounds that grow a tree and verify its best nodes, and keep what survives the verdict.

    tree: only the root.
    grow: draft forwards of a round. The draft has read all verified tokens before the root that are not in the tree.
    verify_rows: rows of a verification, the root included.
    least_probability: as of `TokenTree.best`.
    text: its continuations are verified where there are any, and the tree is only the root. Drafted nodes must not be
        thrown away: residual sampling is exact only if a node that was drawn is verified or not whatever its token.
    """
    yield from prefill(Role.TARGET, request.prompt[:-1])
    unread = list(request.prompt[:-1])  # by the draft
    while True:
        subtree, log_probs = text.subtree() if text and tree.is_bare else None, tuple[float, ...]()
        if subtree is None or len(subtree.tokens) == 1:
            if (yield from read_unread(unread, tree.position)):
                yield from grow()
            subtree = tree.best(verify_rows, least_probability=least_probability)
            log_probs = tree.path_log_probs(subtree)
        _, tokens, finished = yield from colocated_round(request, subtree, log_probs)
        if text:
            text.extend(tokens, finished=finished)
        if finished:
            return
        tree.advance(tokens)
        if tree.num_slots:
            yield KeepKV(Role.DRAFT, *tree.compact())
        else:
            unread += tree.take_unread()
