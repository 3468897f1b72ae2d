"""Stop texts: output ends before the first of them."""

from collections.abc import Sequence

__all__ = ["StopScanner"]


class StopScanner:
    """Looks for stop texts in a text that comes token by token.

    It ends with the token that first completes a stop text: before the one that begins first, if it completes several.
    A piece that may be the beginning of a stop text is held back until more is known.

    Parameters
    ----------
    stops : sequence of str
        None of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def push(self, piece: str) -> str:
        """The text that can be given out after a token's piece; nothing more after a stop text."""
        if self.has_stopped:
            return ""
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.has_stopped, self._held = True, ""
            return text[: min(found)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """The text that was held back, once no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that `stop` begins with, shorter than `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
