"""Prompt lookup decoding (Saxena, 2023; transformers' prompt_lookup_num_tokens): drafting without a draft model.

The last few tokens are looked up in the earlier prompt and output; the continuation of their latest occurrence is
verified as if a draft had proposed it. If they never occurred, one row is decoded as without a draft. No messages are
sent, and only rejected rows are discarded.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import ChainShape, Fields, Grid, TargetOnly, check_shape
from swiftspec.policies.colocated import text_rounds
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Subtree


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup(ChainShape, TargetOnly):
    """Parameters of the lookup.

    num_draft_tokens: tokens verified after a match, at most. longest_match: number of tokens looked up first; then
    fewer and fewer, down to one.
    """

    name: ClassVar[str] = "prompt_lookup"
    elastic: ClassVar[bool] = True
    drafts_from_text: ClassVar[bool] = True
    grid: ClassVar[Grid] = {"num_draft_tokens": (2, 3, 4, 5, 7, 9, 11, 15), "longest_match": (2, 3, 4)}
    profiled: ClassVar[Fields] = {"num_draft_tokens": 4}

    num_draft_tokens: int = 5
    longest_match: int = 3

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, longest_match=1)

    def programs(self, request: Request) -> dict[Role, Program]:
        text = Lookup(self.longest_match, self.num_draft_tokens)
        text.extend(request.prompt)
        return {Role.TARGET: text_rounds(request, text)}


class Lookup:
    """Index of the last occurrence of every token n-gram in a text, and of its continuation.

    longest_match: longest n-gram. max_tokens: tokens of a continuation.
    """

    def __init__(self, longest_match: int, max_tokens: int) -> None:
        self._longest, self._max_tokens = longest_match, max_tokens
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # tokens -> start of their continuation

    def extend(self, tokens: tuple[int, ...], *, finished: bool = False) -> None:  # noqa: ARG002 - it ends, too
        """Add text."""
        for token in tokens:
            end = len(self._tokens)
            for length in range(1, min(self._longest, end) + 1):
                self._after[tuple(self._tokens[end - length :])] = end
            self._tokens.append(token)

    def subtree(self) -> Subtree:
        """The last token and its continuation, a chain; that token alone if it never occurred before."""
        return Subtree.chain(len(self._tokens) - 1, (self._tokens[-1], *self._continuation()))

    def _continuation(self) -> list[int]:
        end = len(self._tokens)
        for length in range(min(self._longest, end), 0, -1):
            start = self._after.get(tuple(self._tokens[end - length :]))
            if start is not None:
                return self._tokens[start : start + self._max_tokens]
        return []
