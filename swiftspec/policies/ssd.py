"""Speculative speculative decoding, Saguaro (ICLR 2026, arXiv 2603.03251): drafts for every likely outcome.

The target verifies a chain of K tokens. Meanwhile the draft prepares for its outcomes, each a number k of accepted
tokens and the token r that follows them: one forward over the chain gives the likeliest r at every k, then K forwards
over all these branches at once give each outcome's next chain. Draft to target: the chain. Target to draft: accepted
tokens and the bonus token. If that outcome was prepared, its chain leaves at once; if not, the draft makes one just in
time, K forwards while the target waits. The other branches are thrown away, and so is the KV of the chosen one: only
verified tokens stay, and the next forward over the chain computes it again.

How many tokens each k gets is the paper's Theorem 12 under a budget of branches: the likelier an outcome, the more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import Layout, Shape, check_shape
from swiftspec.policies.effects import (
    KeepKV,
    Program,
    Role,
    Send,
    Step,
    Stop,
    draft_forward,
    prefill,
    receive_verdict,
)
from swiftspec.policies.verification import Request, verify_rounds
from swiftspec.tree import Candidates, Row, Subtree

__all__ = ["Ssd", "fan_out"]

_MISS_EXPONENT = 1.0  # a token set of size F misses the bonus token with probability F^-r: the paper's r, not fitted
_Outcome = tuple[int, int]  # accepted tokens, the token after them


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssd(Shape):
    """Parameters of the prepared outcomes.

    Parameters
    ----------
    num_draft_tokens : int
        K, tokens of a chain.
    branches : int
        Outcomes prepared per round, at least one for each of the K + 1 accepted lengths.
    acceptance : float
        Probability that a draft token is accepted, for the fan-out; a planner fits it to the trace.
    """

    name: ClassVar[str] = "ssd"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED

    num_draft_tokens: int = 5
    branches: int = 12
    acceptance: float = 0.8

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, branches=self.num_draft_tokens + 1)
        if not 0 < self.acceptance < 1:
            raise ValueError(f"acceptance is {self.acceptance}; expected a probability between 0 and 1")

    @property
    def target_rows(self) -> int:
        return self.num_draft_tokens + 1

    @property
    def draft_rows(self) -> int:
        return self.num_draft_tokens + 1 + self.num_draft_tokens * self.branches

    @property
    def expand_rows(self) -> int:
        return self.branches

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: verify_rounds(request, max_rows=self.target_rows), Role.DRAFT: _draft(request, self)}

    @classmethod
    def search_space(cls) -> Iterator["Ssd"]:
        for num_draft_tokens in (3, 4, 5, 6, 7, 9):
            for branches in (8, 12, 16, 24):
                if branches > num_draft_tokens:
                    yield cls(num_draft_tokens=num_draft_tokens, branches=branches)


def fan_out(num_draft_tokens: int, branches: int, acceptance: float) -> tuple[int, ...]:
    """How many tokens to prepare after 0, 1, ... K accepted ones; at least one each, `branches` in all."""
    power = 1 / (1 + _MISS_EXPONENT)
    weights = [acceptance ** (k * power) for k in range(num_draft_tokens + 1)]
    weights[-1] *= (1 - acceptance) ** -power
    counts = [1] * len(weights)
    for _ in range(branches - len(weights)):
        most = max(range(len(weights)), key=lambda k: weights[k] / counts[k])
        counts[most] += 1
    return tuple(counts)


def _draft(request: Request, shape: Ssd) -> Program:
    yield from prefill(Role.DRAFT, request.prompt[:-1])
    root, position = request.prompt[-1], request.root_position
    chain = yield from _just_in_time(root, position, shape)
    while True:
        yield Send(Subtree(position, (root, *chain), tuple(range(-1, len(chain)))))
        outcomes = yield from _prepare(root, position, chain, shape)
        verdict = yield from receive_verdict()
        if isinstance(verdict, Stop):
            return
        accepted = len(verdict.tokens) - 1
        yield KeepKV(Role.DRAFT, tuple(range(accepted + 1)), accepted + 1)
        root = verdict.tokens[-1]
        position += len(verdict.tokens)
        prepared = outcomes.get((accepted, root))
        chain = prepared or (yield from _just_in_time(root, position, shape))


def _just_in_time(root: int, position: int, shape: Ssd) -> Step[tuple[int, ...]]:
    """A chain by K forwards of one row."""
    tokens = [root]
    for depth in range(shape.num_draft_tokens):
        row = Row(tokens[-1], position + depth, (1 << depth) - 1)
        (candidates,) = yield from draft_forward((row,), 1)
        tokens.append(candidates.tokens[0])
    yield KeepKV(Role.DRAFT, (), 0)
    return tuple(tokens[1:])


def _prepare(root: int, position: int, chain: Sequence[int], shape: Ssd) -> Step[dict[_Outcome, tuple[int, ...]]]:
    """The next chain for each outcome in the fan-out."""
    counts = fan_out(shape.num_draft_tokens, shape.branches, shape.acceptance)
    glue = tuple(Row(token, position + k, (1 << k) - 1) for k, token in enumerate((root, *chain)))
    answers = yield from draft_forward(glue, max(counts) + 1)
    outcomes = list(_likeliest(answers, chain, counts))
    rows = tuple(Row(token, position + k + 1, (2 << k) - 1) for k, token in outcomes)
    chains: list[list[int]] = [[] for _ in outcomes]
    slot = len(glue)
    for _ in range(shape.num_draft_tokens):
        answers = yield from draft_forward(rows, 1)
        for tokens, candidates in zip(chains, answers, strict=True):
            tokens.append(candidates.tokens[0])
        rows = tuple(
            Row(tokens[-1], row.position + 1, row.ancestors | 1 << slot + number)
            for number, (row, tokens) in enumerate(zip(rows, chains, strict=True))
        )
        slot += len(rows)
    return dict(zip(outcomes, map(tuple, chains), strict=True))


def _likeliest(answers: Sequence[Candidates], chain: Sequence[int], counts: Sequence[int]) -> Iterator[_Outcome]:
    """After k accepted tokens the next one is not the chain's, or that would have been accepted too."""
    for k, (candidates, count) in enumerate(zip(answers, counts, strict=True)):
        others = [token for token in candidates.tokens if token not in chain[k : k + 1]]
        yield from ((k, token) for token in others[:count])
