"""Outputs of earlier requests, as a suffix tree with frequencies that later requests search (arXiv 2411.04975).

The tree is compressed: a node is a string with the tokens that always followed it, as they stand in the latest output
that has them; a string that occurred once needs no node, as in `suffix_tree`. No string reaches over the end of an
output. A text is looked up from the root every time, since the tree changes between two rounds of a request. Entering
and removing an output takes microseconds per token, so both are done in pieces, some at each look-up. Pure Python; no
torch, no clock, no randomness.
"""

from collections import deque
from collections.abc import Sequence
from operator import itemgetter

from swiftspec.policies.lookup.speculation import Bounds, Speculation, best_continuation

_END = -(1 << 62)  # after each output; no text has it
_TOKENS_PER_LOOK_UP = 32  # entered or removed; twice as many as a round usually commits


class _Node:
    """A string that occurs at least twice; its last `length` tokens are in the text from `start` on."""

    __slots__ = ("children", "count", "length", "start")

    def __init__(self, start: int, length: int, count: int) -> None:
        self.start = start
        self.length = length
        self.count = count  # occurrences
        self.children: dict[int, _Child] = {}


_Child = _Node | int  # for a string that occurs once, the position of its last part
_Place = tuple[_Node, int] | int  # a node and how many of its last tokens; or the position after a single occurrence


class EarlierOutputs:
    """The latest outputs of requests that have ended.

    most: outputs that are kept; beyond it the oldest one is removed. max_depth: tokens of the longest string that is
    counted: a match and its continuation together.
    """

    def __init__(self, most: int, max_depth: int) -> None:
        self._most, self._max_depth = most, max_depth
        self._root = _Node(0, 0, 0)
        self._text: list[int] = []  # outputs that are kept, each with its end
        self._first = 0  # position of the first token of `_text`
        self._outputs: deque[tuple[int, int]] = deque()  # (first position, end) of each
        self._due: deque[tuple[int, int, bool]] = deque()  # (first position, end, whether to enter or to remove)

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, output: Sequence[int]) -> None:
        """Keep the output of a request that has ended."""
        first = self._first + len(self._text)
        self._text += output
        self._text.append(_END)
        self._outputs.append((first, first + len(output)))
        self._due.append((*self._outputs[-1], True))
        if len(self._outputs) > self._most:
            self._due.append((*self._outputs.popleft(), False))

    def settle(self, num_tokens: int | None = None) -> None:
        """Enter and remove what is due; at most `num_tokens` tokens of it, if given."""
        left = len(self._text) * 2 if num_tokens is None else num_tokens
        while self._due and left > 0:
            first, end, is_new = self._due.popleft()
            stop = min(end, first + left)
            for position in range(first, stop):
                (self._enter if is_new else self._remove)(position, min(self._max_depth, end - position))
            left -= stop - first
            if stop < end:
                self._due.appendleft((stop, end, is_new))
            elif not is_new:
                self._forget(end + 1)

    def speculate(self, text: Sequence[int], bounds: Bounds) -> Speculation:
        """The continuation of best score after any suffix of a text; of equals, that of the longest suffix."""
        self.settle(_TOKENS_PER_LOOK_UP)
        return best_continuation(self._matches(text), self._children, bounds, max_depth=self._max_depth)

    def _matches(self, text: Sequence[int]) -> list[tuple[int, _Place]]:
        """(length, place) of the suffixes of a text that occur, the longest first."""
        tail = list(text[1 - self._max_depth :])
        found: list[tuple[int, _Place]] = []
        for first in range(len(tail)):
            place = self._find(tail, first)
            if place is not None:
                found.append((len(tail) - first, place))
        return found

    def _find(self, tokens: list[int], index: int) -> _Place | None:
        """The place of `tokens[index:]`."""
        node, end = self._root, len(tokens)
        while True:
            below = node.children.get(tokens[index])
            if below is None:
                return None
            if isinstance(below, int):
                start, known = below - self._first, end - index
            else:
                start, known = below.start - self._first, min(below.length, end - index)
            if known > 1 and self._text[start : start + known] != tokens[index : index + known]:
                return None
            if isinstance(below, int):
                return below + known
            index += known
            if index == end:
                return below, known
            node = below

    def _children(self, place: _Place, least_share: float) -> list[tuple[float, int, _Place]]:
        """(share, token, place) of tokens that followed often enough, as `SuffixTree` has them."""
        if isinstance(place, int):
            token = self._text[place - self._first]
            return [(1.0, token, place + 1)] if token != _END and least_share <= 1.0 else []
        node, known = place
        if known < node.length:
            token = self._text[node.start + known - self._first]
            return [(1.0, token, (node, known + 1))] if least_share <= 1.0 else []
        counts = [1 if isinstance(child, int) else child.count for child in node.children.values()]
        total = sum(counts)
        least = least_share * total
        found: list[tuple[float, int, _Place]] = []
        for (token, child), count in zip(reversed(node.children.items()), reversed(counts), strict=True):
            if count >= least:
                found.append((count / total, token, child + 1 if isinstance(child, int) else (child, 1)))
        found.sort(key=itemgetter(0), reverse=True)  # stable
        return found

    def _enter(self, position: int, length: int) -> None:
        """Count the string of `length` tokens at a position, and every string that it begins with."""
        text, first, node, end = self._text, self._first, self._root, position + length
        while position < end:
            token = text[position - first]
            below = node.children.get(token)
            if below is None:
                node.children[token] = position
                return
            if isinstance(below, int):
                num_equal = _num_equal(text, below - first, position - first, end - position)
                upper = node.children[token] = _Node(position, num_equal, 2)
                next_token = text[below + num_equal - first]
                # At the greatest depth the earlier string ends, too.
                if next_token != _END and position + num_equal < end - length + self._max_depth:
                    upper.children[next_token] = below + num_equal
            else:
                num_equal = _num_equal(text, below.start - first, position - first, min(below.length, end - position))
                if num_equal == below.length:
                    below.start = position  # the latest
                    below.count += 1
                    position += num_equal
                    node = below
                    continue
                upper = node.children[token] = _Node(position, num_equal, below.count + 1)
                below.start += num_equal
                below.length -= num_equal
                upper.children[text[below.start - first]] = below
            if position + num_equal < end:
                upper.children[text[position + num_equal - first]] = position + num_equal
            return

    def _remove(self, position: int, length: int) -> None:
        """Undo `_enter`, of the oldest string that is left."""
        node, end = self._root, position + length
        while position < end:
            token = self._text[position - self._first]
            below = node.children[token]
            if isinstance(below, int):
                del node.children[token]
                break
            below.count -= 1
            if below.count == 1:
                node.children[token] = below.start
                return
            position += below.length
            node = below
        if len(node.children) == 1 and node is not self._root:
            (below,) = node.children.values()
            if isinstance(below, _Node) and below.count == node.count:  # always followed by the same again
                node.start = below.start - node.length
                node.length += below.length
                node.children = below.children

    def _forget(self, position: int) -> None:
        """Drop the text before a position, once it is as long as the rest."""
        if 2 * (position - self._first) >= len(self._text):
            del self._text[: position - self._first]
            self._first = position


def _num_equal(text: list[int], one: int, other: int, most: int) -> int:
    """Equal tokens from two places on; the first ones are."""
    if text[one : one + most] == text[other : other + most]:
        return most
    num_equal = 1
    while text[one + num_equal] == text[other + num_equal]:
        num_equal += 1
    return num_equal
