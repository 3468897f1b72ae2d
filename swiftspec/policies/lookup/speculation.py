"""The best continuation of a text by the frequencies of a suffix tree (SuffixDecoding, arXiv 2411.04975).

Matches are the text's suffixes that the tree has; from each the likeliest tokens are followed. Trees differ in how they
hold what is below a match, which is a type of theirs here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

Child = TypeVar("Child")
Children = Callable[[Child, float], list[tuple[float, int, Child]]]


class Speculation(NamedTuple):
    """Continuations of a text, parents before children, the likeliest first.

    `parents[i]` is the index of token i's parent, -1 for the end of the text. `score` is the number of tokens that
    would be accepted if frequencies were probabilities.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a speculation.

    max_tokens: tokens at most.
    max_spec_factor: tokens at most for each token of the match.
    min_token_prob: least product of frequencies along the path to a token.
    branches: most tokens that follow one token; 1 is a chain.
    """

    max_tokens: int
    max_spec_factor: float
    min_token_prob: float
    branches: int = 1


def best_continuation(
    matches: Iterable[tuple[int, Child]], children: Children[Child], bounds: Bounds, *, max_depth: int
) -> Speculation:
    """The continuation of best score over all matches; of equals, that of the longest match.

    matches: (length, what is below), the longest first. children: (share, token, what is below) of those tokens after a
    place whose share of what followed there is at least the second argument, the most frequent first. max_depth: tokens
    of a match and its continuation together.
    """
    best = Speculation()
    for length, below in matches:
        room = min(bounds.max_tokens, int(length * bounds.max_spec_factor + 1e-9), max_depth - length)
        if room > best.score:  # a score is at most the number of tokens
            found = _likeliest(below, children, room, bounds)
            best = found if found.score > best.score else best
    return best


def _likeliest(match: Child, children: Children[Child], max_tokens: int, bounds: Bounds) -> Speculation:
    """The likeliest tokens after a match, each with all before it."""
    tokens, parents, score = list[int](), list[int](), 0.0
    waiting: list[tuple[float, int, int, int, Child]] = []  # -probability, order, parent, token, what is below
    branches = bounds.branches

    def add_children(below: Child, probability: float, parent: int) -> None:
        for share, token, child in children(below, bounds.min_token_prob / probability)[:branches]:
            order = len(tokens) * branches + len(waiting)
            heappush(waiting, (-probability * share, order, parent, token, child))

    add_children(match, 1.0, -1)
    while waiting and len(tokens) < max_tokens:
        negative, _, parent, token, below = heappop(waiting)
        tokens.append(token)
        parents.append(parent)
        score -= negative
        add_children(below, -negative, len(tokens) - 1)
    return Speculation(tuple(tokens), tuple(parents), score)
