"""Continuations prepared for possible outcomes of a verification; shared by SSD and Mirror-SD.

An outcome is a number k of accepted tokens and the token that follows them. While the target verifies a chain, the
draft drafts the next chain for each requested outcome, all in the same forwards.
"""

from collections.abc import Callable, Iterable

from swiftspec.policies.effects import (
    KeepKV,
    PeerError,
    Program,
    Role,
    Send,
    Step,
    Stop,
    draft_forward,
    prefill,
    receive_verdict,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates, Row, Subtree

__all__ = ["Outcome", "Prepared", "forward_window", "prepared_rounds", "roll_out"]

Outcome = tuple[int, int]  # accepted tokens, and the token after them
Prepared = dict[Outcome, tuple[int, ...]]


def prepared_rounds(request: Request, num_draft_tokens: int, prepare: Callable[[Subtree], Step[Prepared]]) -> Program:
    """The draft's program: send a chain, `prepare` for its possible outcomes, continue from the actual one.

    An outcome that was not prepared costs the forwards of a new chain. Only KV of verified tokens is kept.
    """
    yield from prefill(Role.DRAFT, request.prompt[:-1])
    root, position = request.prompt[-1], request.root_position
    chain = yield from _just_in_time(root, position, num_draft_tokens)
    while True:
        window = Subtree(position, (root, *chain), tuple(range(-1, len(chain))))
        yield Send(window)
        prepared = yield from prepare(window)
        verdict = yield from receive_verdict()
        if isinstance(verdict, Stop):
            return
        accepted = len(verdict.tokens) - 1
        if verdict.tokens[:-1] != chain[:accepted]:
            raise PeerError(f"expected tokens along {chain} and one more, got {verdict!r}")
        yield KeepKV(Role.DRAFT, tuple(range(accepted + 1)), accepted + 1)
        root = verdict.tokens[-1]
        position += len(verdict.tokens)
        chain = prepared.get((accepted, root)) or (yield from _just_in_time(root, position, num_draft_tokens))


def forward_window(window: Subtree, num_candidates: int) -> Step[tuple[Candidates, ...]]:
    """One forward over a chain that branches may extend; the candidates after each of its tokens."""
    return (yield from draft_forward(window.rows(), num_candidates))


def roll_out(window: Subtree, outcomes: Iterable[Outcome], num_draft_tokens: int) -> Step[Prepared]:
    """The next chain for each outcome, in as many forwards as it has tokens."""
    outcomes = tuple(outcomes)
    rows = tuple(Row(token, window.position + k + 1, (2 << k) - 1) for k, token in outcomes)
    chains: list[list[int]] = [[] for _ in outcomes]
    slot = len(window.tokens)
    for _ in range(num_draft_tokens):
        answers = yield from draft_forward(rows, 1)
        for tokens, candidates in zip(chains, answers, strict=True):
            tokens.append(candidates.tokens[0])
        rows = tuple(
            Row(tokens[-1], row.position + 1, row.ancestors | 1 << slot + number)
            for number, (row, tokens) in enumerate(zip(rows, chains, strict=True))
        )
        slot += len(rows)
    return dict(zip(outcomes, map(tuple, chains), strict=True))


def _just_in_time(root: int, position: int, num_draft_tokens: int) -> Step[tuple[int, ...]]:
    tokens = [root]
    for depth in range(num_draft_tokens):
        row = Row(tokens[-1], position + depth, (1 << depth) - 1)
        (candidates,) = yield from draft_forward((row,), 1)
        tokens.append(candidates.tokens[0])
    yield KeepKV(Role.DRAFT, (), 0)
    return tuple(tokens[1:])
