"""Prompt lookup decoding (Saxena, 2023; transformers' prompt_lookup_num_tokens): drafting without a draft model.

The last few tokens are looked up in the earlier prompt and output; the continuation of their latest occurrence is
verified as if a draft had proposed it. If they never occurred, one row is decoded as without a draft. No messages are
sent, and only rejected rows are discarded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import TargetOnly, check_shape
from swiftspec.policies.effects import Commit, KeepKV, Prefill, Program, Role, target_forward
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Subtree
from swiftspec.policies.verification import follow

__all__ = ["Lookup", "PromptLookup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup(TargetOnly):
    """Parameters of the lookup.

    Parameters
    ----------
    num_draft_tokens : int
        Tokens verified after a match, at most.
    longest_match : int
        Number of tokens looked up first; then fewer and fewer, down to one.
    """

    name: ClassVar[str] = "prompt_lookup"
    elastic: ClassVar[bool] = True
    quotes: ClassVar[bool] = True

    num_draft_tokens: int = 5
    longest_match: int = 3

    def __post_init__(self) -> None:
        check_shape(self, num_draft_tokens=1, longest_match=1)

    @property
    def target_rows(self) -> int:
        return self.num_draft_tokens + 1

    @property
    def least_target_rows(self) -> int:
        return 1

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: _rounds(request, self)}

    @property
    def chain_tokens(self) -> int:
        return self.num_draft_tokens

    @classmethod
    def search_space(cls) -> Iterator["PromptLookup"]:
        for num_draft_tokens in (2, 3, 4, 5, 7, 9, 11, 15):
            for longest_match in (2, 3, 4):
                yield cls(num_draft_tokens=num_draft_tokens, longest_match=longest_match)

    @classmethod
    def host_shapes(cls) -> Iterator["PromptLookup"]:
        yield cls(num_draft_tokens=4)


class Lookup:
    """Index of the last occurrence of every token n-gram in the text, and of its continuation."""

    def __init__(self, longest_match: int) -> None:
        self._longest = longest_match
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # tokens -> start of their continuation

    def extend(self, tokens: tuple[int, ...]) -> None:
        """Add text."""
        for token in tokens:
            end = len(self._tokens)
            for length in range(1, min(self._longest, end) + 1):
                self._after[tuple(self._tokens[end - length :])] = end
            self._tokens.append(token)

    def guess(self, num_tokens: int) -> tuple[int, ...]:
        """At most `num_tokens` tokens that may follow; none if the last token never occurred before."""
        end = len(self._tokens)
        for length in range(min(self._longest, end), 0, -1):
            start = self._after.get(tuple(self._tokens[end - length :]))
            if start is not None:
                return tuple(self._tokens[start : start + num_tokens])
        return ()


def _rounds(request: Request, shape: PromptLookup) -> Program:
    token: int = yield Prefill(Role.TARGET, request.prompt)
    lookup = Lookup(shape.longest_match)
    lookup.extend(request.prompt)
    tokens, finished = request.clip((token,), num_generated=0)
    yield Commit(tokens)
    position, num_generated = request.root_position + 1, 1
    while not finished:
        lookup.extend(tokens)
        guess = lookup.guess(shape.num_draft_tokens)
        chain = Subtree(position, (tokens[-1], *guess), tuple(range(-1, len(guess))))
        choices = yield from target_forward(chain.rows())
        path, verified = follow(chain, choices)
        tokens, finished = request.clip(verified, num_generated=num_generated)
        yield Commit(tokens)
        if not finished:
            yield KeepKV(Role.TARGET, path, len(path))
        position += len(tokens)
        num_generated += len(tokens)
