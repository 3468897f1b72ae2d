"""Continuations prepared for possible outcomes of a verification; shared by SSD, with a head or without, and Mirror-SD.

An outcome is a number k of accepted tokens and the token that follows them. While the target verifies a chain, the
draft drafts the next chain for each requested outcome, all in the same forwards.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from swiftspec.policies.effects import (
    DraftForward,
    KeepKV,
    PeerError,
    Program,
    Role,
    Send,
    Stop,
    Subprogram,
    prefill,
    receive_verdict,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates, Row, Subtree

Outcome = tuple[int, int]  # accepted tokens, and the token after them


class Branch(NamedTuple):
    """A chain prepared for an outcome. One entry per token of it.

    candidates: those that each token was the first of. slots: of the rows that they follow, the outcome's token first.
    """

    tokens: tuple[int, ...]
    candidates: tuple[Candidates, ...]
    slots: tuple[int, ...]


Branches = dict[Outcome, Branch]


def prepared_rounds(
    request: Request,
    num_draft_tokens: int,
    prepare: Callable[[Subtree], Subprogram[Branches]],
    *,
    miss_draft_tokens: int | None = None,
) -> Program:
    """The draft's program: send a chain, `prepare` for its possible outcomes, continue from the actual one.

    An outcome that was not prepared costs the forwards of a new chain, of `miss_draft_tokens`, or as many as any other.
    Only KV of verified tokens is kept.
    """
    after_miss = num_draft_tokens if miss_draft_tokens is None else miss_draft_tokens
    yield from prefill(Role.DRAFT, request.prompt[:-1])
    root, position = request.prompt[-1], request.root_position
    chain = yield from _just_in_time(root, position, num_draft_tokens)
    while True:
        window = Subtree.chain(position, (root, *chain))
        yield Send(window)
        prepared = yield from prepare(window)
        verified = yield from receive_outcome(chain)
        if not verified:
            return
        yield KeepKV(Role.DRAFT, tuple(range(len(verified))), len(verified))
        root = verified[-1]
        position += len(verified)
        branch = prepared.get((len(verified) - 1, root))
        chain = branch.tokens if branch else (yield from _just_in_time(root, position, after_miss))


def receive_outcome(chain: tuple[int, ...]) -> Subprogram[tuple[int, ...]]:
    """Receive a chain's verdict: the accepted tokens and the one after them; none if the target has finished.

    PeerError unless the accepted tokens are the chain's.
    """
    verdict = yield from receive_verdict()
    if isinstance(verdict, Stop):
        return ()
    accepted = len(verdict.tokens) - 1
    if verdict.tokens[:-1] != chain[:accepted]:
        raise PeerError(f"expected tokens along {chain} and one more, got {verdict!r}")
    return verdict.tokens


def roll_out(
    window: Subtree,
    outcomes: Iterable[Outcome],
    num_draft_tokens: int,
    *,
    root_has_slot: bool = True,
    num_candidates: int = 1,
) -> Subprogram[Branches]:
    """The next chain for each outcome, in as many forwards as it has tokens.

    root_has_slot: whether the window's root is in the first tree slot; otherwise it is in the prefix.
    """
    outcomes, num_slots = tuple(outcomes), len(window.tokens) - 1 + root_has_slot
    rows = tuple(Row(token, window.position + k + 1, (1 << k + root_has_slot) - 1) for k, token in outcomes)
    answered: list[tuple[Candidates, ...]] = []
    slots = range(num_slots, num_slots + num_draft_tokens * len(rows))
    for depth in range(num_draft_tokens):
        answers = yield from DraftForward(rows, num_candidates)
        answered.append(answers)
        first = num_slots + depth * len(rows)
        rows = tuple(
            Row(candidates.tokens[0], row.position + 1, row.ancestors | 1 << first + number)
            for number, (row, candidates) in enumerate(zip(rows, answers, strict=True))
        )
    branches = (
        Branch(tuple(each.tokens[0] for each in candidates), candidates, tuple(slots[number :: len(outcomes)]))
        for number, candidates in enumerate(zip(*answered, strict=True))
    )
    return dict(zip(outcomes, branches, strict=True))


def _just_in_time(root: int, position: int, num_draft_tokens: int) -> Subprogram[tuple[int, ...]]:
    tokens = [root]
    for depth in range(num_draft_tokens):
        row = Row(tokens[-1], position + depth, (1 << depth) - 1)
        (candidates,) = yield from DraftForward((row,), 1)
        tokens.append(candidates.tokens[0])
    if num_draft_tokens:
        yield KeepKV(Role.DRAFT, (), 0)
    return tuple(tokens[1:])
