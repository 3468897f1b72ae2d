"""Text that a request may be continued from: its own, and earlier outputs (SuffixDecoding, arXiv 2411.04975)."""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from swiftspec.policies.base import Policy
from swiftspec.policies.lookup.earlier_outputs import EarlierOutputs
from swiftspec.policies.lookup.speculation import Bounds, Speculation, best_continuation
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Subtree


class _Node:
    """A string that occurred at least twice."""

    __slots__ = ("children", "depth", "num_followed", "num_occurrences")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.num_occurrences = 0
        self.num_followed = 0  # occurrences except one at the text's end
        self.children: dict[int, _Child] = {}


_Child = _Node | int  # for a string that occurred once, the position after it


class SuffixTree:
    """Suffix tree of a growing text.

    max_depth: tokens of the longest string that is counted: a match and its continuation together.
    """

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._text: list[int] = []
        self._root = _Node(0)
        self._matches: list[_Node] = []  # suffixes of the text that occurred before, the longest first

    @property
    def text(self) -> Sequence[int]:
        """The whole text."""
        return self._text

    def extend(self, tokens: Iterable[int]) -> None:
        """Add text."""
        for token in tokens:
            self._text.append(token)
            matches: list[_Node] = []
            for node in (*self._matches, self._root):
                node.num_followed += 1
                child = node.children.get(token)
                if child is None:
                    node.children[token] = len(self._text)
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

    def speculate(self, bounds: Bounds) -> Speculation:
        """The continuation of best score over all matches; of equals, that of the longest match."""
        matches: list[tuple[int, _Child]] = [(node.depth, node) for node in self._matches]
        return best_continuation(matches, self._children, bounds, max_depth=self._max_depth)

    def _children(self, below: _Child, least_share: float) -> list[tuple[float, int, _Child]]:
        """(share, token, what is below) of tokens that followed often enough, the most frequent first.

        Of equally frequent tokens the one seen first most recently is first: a text resembles its latest part.
        """
        if isinstance(below, int):
            known = below < len(self._text) and least_share <= 1.0
            return [(1.0, self._text[below], below + 1)] if known else []
        least, total = least_share * below.num_followed, below.num_followed
        found: list[tuple[float, int, _Child]] = []
        for token, child in reversed(below.children.items()):
            count = 1 if isinstance(child, int) else child.num_occurrences
            if count >= least:
                found.append((count / total, token, child))
        found.sort(key=itemgetter(0), reverse=True)  # stable
        return found


class KnownText:
    """Suffix trees of a request's own text and, if there are any, of earlier outputs.

    max_depth: tokens of the longest string that is counted in its own text. bounds: of a continuation. least_score:
    least score of a continuation that is worth verifying.
    """

    def __init__(self, request: Request, max_depth: int, bounds: Bounds, *, least_score: float = 0.0) -> None:
        self._bounds, self._least_score = bounds, least_score
        self._earlier = request.earlier
        self._own = SuffixTree(max_depth)
        self._own.extend(request.prompt)
        self._before_output = len(request.prompt) - request.num_output

    def extend(self, tokens: tuple[int, ...], *, finished: bool) -> None:
        """Add output. finished: later requests may be continued from all of it."""
        self._own.extend(tokens)
        if finished and self._earlier is not None:
            self._earlier.add(self._own.text[self._before_output :])

    def subtree(self) -> Subtree:
        """The continuation of best score, under the text's last token; that token alone if none is worth a round.

        Of equals that of the request's own text.
        """
        text, found = self._own.text, self._own.speculate(self._bounds)
        if self._earlier is not None:
            earlier = self._earlier.speculate(text, self._bounds)
            found = earlier if earlier.score > found.score else found
        if found.score < self._least_score:
            found = Speculation()
        return Subtree(len(text) - 1, (text[-1], *found.tokens), (-1, *(parent + 1 for parent in found.parents)))


class SharedOutputs:
    """Earlier outputs that a server keeps: apart for every tenant, and for every policy that searches them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int], EarlierOutputs] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def known_to(self, policy: Policy, tenant: int = 0) -> EarlierOutputs | None:
        """The outputs that a tenant's request may be continued from; None if its policy searches none."""
        if not policy.earlier_outputs:
            return None
        key = (tenant, policy.earlier_outputs, policy.max_tree_depth)
        if key not in self._kept:
            self._kept[key] = EarlierOutputs(policy.earlier_outputs, policy.max_tree_depth)
        return self._kept[key]
