"""Mirror-SD (arXiv 2510.13161): outcomes to draft for are guessed from the target's own middle layer.

The target verifies a chain of K tokens in two halves. The first half's `guesses` best tokens at each position go to the
draft; while the target runs the second half, the draft drafts the next chain after each of these tokens, (K + 1) *
guesses branches at once. Target to draft: a tree, the chain with the guesses below each of its tokens; then accepted
tokens and the bonus token. If that outcome was among the guesses, its chain is sent at once; otherwise the draft makes
one while the target waits. The other branches are discarded.

The paper's draft emits several tokens per forward (speculative streaming) and runs on NPUs; here it is any draft model.
The paper's formula roots branches at the next position only, its figure at every position; this follows the figure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.asynchronous.branches import Branches, prepared_rounds, roll_out
from swiftspec.policies.base import ChainShape, Fields, Layout, check_shape, shapes
from swiftspec.policies.effects import (
    DraftForward,
    PeerError,
    Program,
    Receive,
    Role,
    Send,
    Subprogram,
    TargetExit,
    TargetFinish,
    Verdict,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates, Subtree
from swiftspec.policies.verification import verify_rounds

_MOST_BRANCHES = 24  # tried: more rows than that make a draft forward expensive


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror(ChainShape):
    """Parameters of the guessed outcomes.

    num_draft_tokens: K, tokens of a chain. guesses: guesses of the first half at each of the K + 1 positions (the
    paper's kappa).
    """

    name: ClassVar[str] = "mirror"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    exits: ClassVar[bool] = True
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4, "guesses": 1}

    num_draft_tokens: int = 4
    guesses: int = 2

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, guesses=1)

    @property
    def draft_rows(self) -> int:
        return self.target_rows + self.num_draft_tokens * self.expand_rows

    @property
    def expand_rows(self) -> int:
        return self.target_rows * self.guesses

    def programs(self, request: Request) -> dict[Role, Program]:
        return {
            Role.TARGET: verify_rounds(request, max_rows=self.target_rows, verify=self._verify),
            Role.DRAFT: prepared_rounds(request, self.num_draft_tokens, self._prepare),
        }

    @classmethod
    def search_space(cls) -> Iterator["Mirror"]:
        found = shapes(cls, num_draft_tokens=(2, 3, 4, 5, 6, 7, 9), guesses=(1, 2, 3, 4))
        return (shape for shape in found if shape.expand_rows <= _MOST_BRANCHES)

    def _verify(self, window: Subtree) -> Subprogram[tuple[int, ...]]:
        answers = yield from TargetExit(window.rows(), self.guesses + 1)
        yield Send(_hypotheses(window, answers, self.guesses))
        return (yield from TargetFinish())

    def _prepare(self, window: Subtree) -> Subprogram[Branches]:
        yield from DraftForward(window.rows(), 1, is_guess=True)  # its KV, while the target is in its first half
        hypotheses, length = (yield from _receive_hypotheses(window, self.expand_rows)), len(window.tokens)
        guessed = zip(hypotheses.parents[length:], hypotheses.tokens[length:], strict=True)
        outcomes = [(k, token) for k, token in guessed if 0 <= k < length]
        return (yield from roll_out(window, outcomes, self.num_draft_tokens))


def _hypotheses(window: Subtree, answers: Sequence[Candidates], guesses: int) -> Subtree:
    """The chain, and below each of its tokens the guesses that may replace the chain's next one."""
    tokens, parents = list(window.tokens), list(window.parents)
    for k, candidates in enumerate(answers):
        others = [token for token in candidates.tokens if token not in window.tokens[k + 1 : k + 2]][:guesses]
        tokens += others
        parents += [k] * len(others)
    return Subtree(window.position, tuple(tokens), tuple(parents))


def _receive_hypotheses(window: Subtree, most_guesses: int) -> Subprogram[Subtree]:
    message = yield from Receive()
    while isinstance(message, Verdict) and not message.tokens:  # the target has finished its prefill
        message = yield from Receive()
    length = len(window.tokens)
    if (
        not isinstance(message, Subtree)
        or message.tokens[:length] != window.tokens
        or len(message.tokens) > length + most_guesses
        or len(message.parents) != len(message.tokens)
    ):
        raise PeerError(f"expected up to {most_guesses} guesses below {window!r}, got {message!r}")
    return message
