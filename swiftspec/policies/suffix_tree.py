"""Suffix tree of a text with frequencies, for drafts without a model (SuffixDecoding, arXiv 2411.04975).

A node is a string of the text, up to a greatest depth; it counts its occurrences and has a child for each token that
ever followed. A string that occurred once needs no node: its parent holds the position after it, where the text itself
goes on. Appending a token costs one step for each suffix of the text that occurred before, and these suffixes are the
matches from which a continuation is speculated. Pure Python; no torch, no clock, no randomness.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

__all__ = ["Speculation", "SuffixTree"]


class Speculation(NamedTuple):
    """Continuations of a text, parents before children, the likeliest first.

    `parents[i]` is the index of token i's parent, -1 for the end of the text. `score` is the number of tokens that
    would be accepted if frequencies were probabilities.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    score: float = 0.0


class _Node:
    """A string that occurred at least twice."""

    __slots__ = ("children", "depth", "num_followed", "num_occurrences")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.num_occurrences = 0
        self.num_followed = 0  # occurrences except one at the text's end
        self.children: dict[int, _Below] = {}


_Below = _Node | int  # for a string that occurred once, the position after it


class SuffixTree:
    """Suffix tree of a growing text.

    Parameters
    ----------
    max_depth : int
        Tokens of the longest string that is counted: a match and its continuation together.
    """

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._text: list[int] = []
        self._root = _Node(0)
        self._matches: list[_Node] = []  # suffixes of the text that occurred before, the longest first

    @property
    def last(self) -> int:
        """The text's last token."""
        return self._text[-1]

    def extend(self, tokens: Iterable[int]) -> None:
        """Add text."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        text, matches = self._text, list[_Node]()
        text.append(token)
        for node in (*self._matches, self._root):
            node.num_followed += 1
            child = node.children.get(token)
            if child is None:
                node.children[token] = len(text)
                continue
            if isinstance(child, int):
                child = node.children[token] = self._counted(child, node.depth + 1)
            child.num_occurrences += 1
            if child.depth < self._max_depth:
                matches.append(child)
        self._matches = matches

    def _counted(self, position: int, depth: int) -> _Node:
        """Node of a string whose only occurrence so far ends before `position`."""
        node = _Node(depth)
        node.num_occurrences = node.num_followed = 1
        node.children[self._text[position]] = position + 1
        return node

    def speculate(
        self, max_tokens: int, *, max_spec_factor: float, min_token_prob: float, branches: int = 1
    ) -> Speculation:
        """The continuation of best score over all matches; of equals, that of the longest match.

        Parameters
        ----------
        max_tokens : int
            Tokens at most.
        max_spec_factor : float
            Tokens at most for each token of the match.
        min_token_prob : float
            Least product of frequencies along the path to a token.
        branches : int
            Most tokens that follow one token; 1 is a chain.
        """
        best = Speculation()
        for node in self._matches:
            room = min(max_tokens, int(node.depth * max_spec_factor + 1e-9), self._max_depth - node.depth)
            if room > best.score:  # a score is at most the number of tokens
                found = self._likeliest(node, room, min_token_prob, branches)
                best = found if found.score > best.score else best
        return best

    def _likeliest(self, match: _Node, max_tokens: int, min_token_prob: float, branches: int) -> Speculation:
        """The likeliest tokens after a match, each with all before it."""
        tokens, parents, score = list[int](), list[int](), 0.0
        waiting: list[tuple[float, int, int, int, _Below]] = []  # -probability, order, parent, token, what is below

        def add_children(below: _Below, probability: float, parent: int) -> None:
            for share, token, child in self._children(below, min_token_prob / probability)[:branches]:
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

    def _children(self, below: _Below, least_share: float) -> list[tuple[float, int, _Below]]:
        """(share, token, what is below) of tokens that followed often enough, the most frequent first.

        Of equally frequent tokens the one seen first most recently is first: a text resembles its latest part.
        """
        if isinstance(below, int):
            known = below < len(self._text) and least_share <= 1.0
            return [(1.0, self._text[below], below + 1)] if known else []
        least, total = least_share * below.num_followed, below.num_followed
        found: list[tuple[float, int, _Below]] = []
        for token, child in reversed(below.children.items()):
            count = 1 if isinstance(child, int) else child.num_occurrences
            if count >= least:
                found.append((count / total, token, child))
        found.sort(key=_share, reverse=True)  # stable
        return found


def _share(child: tuple[float, int, _Below]) -> float:
    return child[0]
