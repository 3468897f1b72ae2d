"""Speculative speculative decoding, Saguaro (ICLR 2026, arXiv 2603.03251): drafts for every likely outcome.

The target verifies a chain of K tokens. Meanwhile the draft prepares for its outcomes, each a number k of accepted
tokens and the token r that follows them: one forward over the chain gives the most likely r at every k, then K forwards
over all these branches at once give each outcome's next chain. Draft to target: the chain. Target to draft: accepted
tokens and the bonus token. If that outcome was prepared, its chain is sent at once; if not, the draft makes one while
the target waits, as long as the fallback allows: of K tokens, fewer, or none, since under load everybody whose rows
share the step would wait. The other branches are discarded, and so is the KV of the chosen one: only verified tokens
stay, and the next forward over the chain computes it again.

The number of tokens for each k follows the paper's Theorem 12 under a budget of branches, for the length that the chain
has, after a miss too: the likelier, the more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from swiftspec.errors import FieldError
from swiftspec.policies.asynchronous.branches import Branches, Outcome, prepared_rounds, roll_out
from swiftspec.policies.base import ChainShape, Fields, Layout, check_positive, check_shape
from swiftspec.policies.effects import DraftForward, Program, Role, Subprogram
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates, Subtree
from swiftspec.policies.verification import verify_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssd(ChainShape):
    """Parameters of the prepared outcomes.

    num_draft_tokens: K, tokens of a chain. branches: outcomes prepared per round, at least one for each of the K + 1
    accepted lengths. miss_draft_tokens: most tokens of the chain after a miss, for which the target waits.

    For the fan-out, both fitted to the trace by a planner. acceptance: probability that a draft token is accepted.
    miss_exponent: the paper's r: F likely tokens miss the one after a rejection with a probability of F^-r.
    """

    name: ClassVar[str] = "ssd"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    elastic: ClassVar[bool] = True
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4, "branches": 8}

    num_draft_tokens: int = 5
    branches: int = 12
    miss_draft_tokens: int = 16
    acceptance: float = 0.8
    miss_exponent: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, branches=self.num_draft_tokens + 1, miss_draft_tokens=0)
        check_positive(self, "miss_exponent")
        if not 0 < self.acceptance < 1:
            raise FieldError("acceptance", self.acceptance, "expected a probability between 0 and 1")

    @property
    def draft_rows(self) -> int:
        return self.num_draft_tokens + 1 + self.num_draft_tokens * self.branches

    @property
    def expand_rows(self) -> int:
        return self.branches

    def fan_out(self, chain_tokens: int) -> tuple[int, ...]:
        """Numbers of tokens to prepare after each number of accepted ones of a chain."""
        return fan_out(chain_tokens, self.branches, self.acceptance, self.miss_exponent)

    def programs(self, request: Request) -> dict[Role, Program]:
        draft = prepared_rounds(
            request,
            self.num_draft_tokens,
            lambda window: _prepare(window, self),
            miss_draft_tokens=min(self.miss_draft_tokens, self.num_draft_tokens),
        )
        return {Role.TARGET: verify_rounds(request, max_rows=self.target_rows), Role.DRAFT: draft}

    @classmethod
    def search_space(cls) -> Iterator["Ssd"]:
        for num_draft_tokens in (3, 4, 5, 6, 7, 9):
            for branches in (8, 12, 16, 24):
                if branches > num_draft_tokens:
                    yield cls(num_draft_tokens=num_draft_tokens, branches=branches)

    def load_variants(self) -> Iterator["Ssd"]:
        yield replace(self, miss_draft_tokens=0)


@cache
def fan_out(num_draft_tokens: int, branches: int, acceptance: float, miss_exponent: float = 1.0) -> tuple[int, ...]:
    """Numbers of tokens to prepare after 0, 1, ... K accepted ones; at least one each, `branches` in all."""
    power = 1 / (1 + miss_exponent)
    weights = [acceptance ** (k * power) for k in range(num_draft_tokens + 1)]
    weights[-1] *= (1 - acceptance) ** -power
    counts = [1] * len(weights)
    for _ in range(branches - len(weights)):
        most = max(range(len(weights)), key=lambda k: weights[k] / counts[k])
        counts[most] += 1
    return tuple(counts)


def _prepare(window: Subtree, shape: Ssd) -> Subprogram[Branches]:
    """The next chain for each outcome in the fan-out."""
    counts = shape.fan_out(len(window.tokens) - 1)
    answers = yield from DraftForward(window.rows(), max(counts) + 1, is_guess=True)
    outcomes = likeliest(answers, window.tokens[1:], counts)
    return (yield from roll_out(window, outcomes, shape.num_draft_tokens))


def likeliest(answers: Sequence[Candidates], chain: Sequence[int], counts: Sequence[int]) -> Iterator[Outcome]:
    """The most likely outcomes. After k accepted tokens the next is not the chain's, or it would be accepted too."""
    for k, (candidates, count) in enumerate(zip(answers, counts, strict=True)):
        others = [token for token in candidates.tokens if token not in chain[k : k + 1]]
        yield from ((k, token) for token in others[:count])
