"""Text that a request may be continued from: its own, and earlier outputs (SuffixDecoding, arXiv 2411.04975)."""

from collections.abc import Iterable

from swiftspec.policies.lookup.speculation import Bounds, Speculation
from swiftspec.policies.lookup.suffix_tree import SuffixTree
from swiftspec.policies.request import Request

__all__ = ["KnownText"]


class KnownText:
    """Suffix trees of a request's own text and, if there are any, of earlier outputs.

    Parameters
    ----------
    request : Request
    max_depth : int
        Tokens of the longest string that is counted in its own text.
    """

    def __init__(self, request: Request, max_depth: int) -> None:
        self._earlier = request.earlier
        self._own = SuffixTree(max_depth)
        self._own.extend(request.prompt)
        self._before_output = len(request.prompt) - request.num_output

    @property
    def last(self) -> int:
        """The last token."""
        return self._own.text[-1]

    def extend(self, tokens: Iterable[int]) -> None:
        """Add output."""
        self._own.extend(tokens)

    def speculate(self, bounds: Bounds) -> Speculation:
        """The continuation of best score; of equals, that of the request's own text."""
        own = self._own.speculate(bounds)
        if self._earlier is None:
            return own
        earlier = self._earlier.speculate(self._own.text, bounds)
        return earlier if earlier.score > own.score else own

    def finish(self, tokens: Iterable[int]) -> None:
        """Add the last output; later requests may be continued from it."""
        if self._earlier is not None:
            self._own.extend(tokens)
            self._earlier.add(self._own.text[self._before_output :])
