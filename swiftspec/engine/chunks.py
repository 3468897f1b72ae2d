"""Chunks: the committed tokens of a request with the text that they complete."""

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from swiftspec.errors import EngineError
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.policies import Request

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Generation

__all__ = ["Chunk", "Chunks", "Finish"]

Finish = Literal["stop", "length"]  # at an end of sequence, or at the longest output


class Chunk(NamedTuple):
    """Tokens and text of one commit.

    Attributes
    ----------
    token_ids : tuple of int
        The committed tokens; none in a last chunk that brings only text.
    text : str
        The text that these tokens complete; empty while a character is incomplete.
    finish : "stop", "length" or None
        Why the output ends here: with an end of sequence, or at its longest. None if it goes on.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: Finish | None = None


class Chunks:
    """Makes the chunks of one request."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self._request = request
        self._text = tokenizer.stream()
        self._num_tokens = 0

    def of(self, tokens: tuple[int, ...]) -> Chunk:
        """The chunk of the next commit."""
        _, is_last = self._request.clip(tokens, num_generated=self._num_tokens)
        self._num_tokens += len(tokens)
        text = self._text.push(tokens)
        if not is_last:
            return Chunk(tokens, text)
        is_stopped = tokens[-1] in self._request.eos_token_ids
        return Chunk(tokens, text + self._text.flush(), "stop" if is_stopped else "length")

    def rest(self) -> tuple[Chunk, ...]:
        """A chunk of the text that is left if the output ends here, if there is any."""
        with suppress(Exception):  # decoding may be what ends it, and its end has to be told
            return (Chunk((), text),) if (text := self._text.flush()) else ()
        return ()

    def follow(self, commits: "Generator[tuple[int, ...], None, Generation]") -> "Generator[Chunk, None, Generation]":
        """Chunks of some commits; the text that is left comes last, also before an EngineError."""
        try:
            while True:
                yield self.of(next(commits))
        except (StopIteration, EngineError) as ended:
            yield from self.rest()
            if isinstance(ended, EngineError):
                raise
            generation: Generation = ended.value
            return generation
