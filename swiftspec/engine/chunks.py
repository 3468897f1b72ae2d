"""Chunks: the committed tokens of a request with the text that they complete."""

from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from swiftspec.errors import EngineError
from swiftspec.models.tokenizer import TextStream, Tokenizer
from swiftspec.policies import Request
from swiftspec.policies.effects import Candidates

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Generation
    from swiftspec.engine.process.protocol import ScoreReport

Finish = Literal["stop", "length"]  # at an end of sequence, or at the longest output


class Chunk(NamedTuple):
    """Tokens and text of one commit.

    token_ids: the committed tokens; none in a last chunk that brings only text.
    text: the text that these tokens complete; empty while a character is incomplete.
    finish: why the output ends here: with an end of sequence, which has no text, or at its longest.
    log_probs: of each token, if they were wanted.
    candidates: the likeliest tokens in the place of each, if they were wanted.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: Finish | None = None
    log_probs: tuple[float, ...] = ()
    candidates: tuple[Candidates, ...] = ()

    def joined(self, later: "Chunk") -> "Chunk":
        """This chunk with the one after it."""
        return Chunk(
            self.token_ids + later.token_ids,
            self.text + later.text,
            later.finish,
            self.log_probs + later.log_probs,
            self.candidates + later.candidates,
        )


class Chunks:
    """Makes the chunks of one request. scores: log-probs of its tokens, which are there before their commit is."""

    def __init__(self, request: Request, tokenizer: Tokenizer, scores: "Sequence[ScoreReport]" = ()) -> None:
        self._request = request
        self._text = TextStream(tokenizer)
        self._num_tokens = 0
        self._scores = iter(scores)

    def of(self, tokens: tuple[int, ...]) -> Chunk:
        _, is_last = self._request.clip(tokens, num_generated=self._num_tokens)
        self._num_tokens += len(tokens)
        is_stopped = is_last and tokens[-1] in self._request.eos_token_ids
        text = self._text.push(tokens[:-1] if is_stopped else tokens)
        finish: Finish | None = None
        if is_last:
            text, finish = text + self._text.flush(), "stop" if is_stopped else "length"
        told = next(self._scores, None)  # of the same commit
        return Chunk(tokens, text, finish, *((told.log_probs, told.candidates) if told else ()))

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
