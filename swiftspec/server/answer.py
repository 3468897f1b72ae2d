"""The output of a request as its client gets it: text up to a stop text, counted, and ended in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from swiftspec.engine.scoring import ScoredToken
from swiftspec.errors import EngineBusyError, EngineError

if TYPE_CHECKING:
    from swiftspec.engine.api import Chunk, Finish, Generation
    from swiftspec.engine.async_api import AsyncStream
    from swiftspec.models.tokenizer import TextStream
    from swiftspec.server.bodies import GenerationBody

_log = logging.getLogger("swiftspec.server")


class StopScanner:
    """Looks for stop texts in a text that comes token by token.

    It ends with the token that first completes a stop text: before the one that begins first, if it completes several.
    A piece that may be the beginning of a stop text is held back until more is known.

    stops: none of them empty. include: give out the stop text, too. stopped: the stop text that has come.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.stopped: str | None = None

    def push(self, piece: str, *, may_stop: bool = True) -> str:
        """The text that can be given out after a token's piece; nothing more after a stop text.

        may_stop: whether a stop text that this piece completes counts: not where the output is too short to end.
        """
        if self.stopped is not None:
            return ""
        text = self._held + piece
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found and may_stop:
            at, self.stopped = min(found, key=lambda each: each[0])
            self._held = ""
            return text[: at + len(self.stopped)] if self._include else text[:at]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


async def merged(answers: Sequence[Answer]) -> AsyncIterator[tuple[Answer, Piece]]:
    """The pieces of several answers, as they come."""
    if len(answers) == 1:
        async for piece in answers[0]:
            yield answers[0], piece
        return
    pieces = {answer.index: aiter(answer) for answer in answers}
    coming = {asyncio.ensure_future(anext(pieces[answer.index])): answer for answer in answers}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                answer = coming.pop(each)
                with suppress(StopAsyncIteration):
                    yield answer, each.result()
                    coming[asyncio.ensure_future(anext(pieces[answer.index]))] = answer
    finally:
        for each in coming:
            each.cancel()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that `stop` begins with, shorter than `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


@dataclass(slots=True)
class Usage:
    """Tokens of a request so far."""

    prompt_tokens: int
    completion_tokens: int = 0

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Usage:
        """That of several answers to one prompt, which counts once."""
        return cls(answers[0].usage.prompt_tokens, sum(each.usage.completion_tokens for each in answers))

    def as_json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


class Piece(NamedTuple):
    """A part of an answer.

    token_ids: may have text in a later part. scored: they with their log-probs, if those are wanted.
    offset: characters of the tokens before them.
    """

    text: str
    finish: Finish | None
    token_ids: tuple[int, ...]
    scored: tuple[ScoredToken, ...] = ()
    offset: int = 0
    is_first: bool = False

    def joined(self, later: Piece) -> Piece:
        tokens, scored = self.token_ids + later.token_ids, self.scored + later.scored
        return Piece(self.text + later.text, later.finish, tokens, scored, self.offset, self.is_first)


@dataclass(eq=False)
class Answer:
    """Output of a request as text: an asynchronous iterator over its pieces.

    seed: by which it is sampled; None if it is greedy.
    text: makes text of tokens one by one, if that is needed. Where there are stop texts, output ends with the token
        that completes one, however many tokens came with it.
    timeout_s: longest time until its last token. ended: called with it at its end.
    index: its place among several answers to one request.

    finish: why it has ended.
    stop_reason: the stop text, or the token of `stop_token_ids`, with which it has ended.
    commits_s: when its commits so far were there for the client.
    stream: the engine's; after `close` it has the record of the request.
    why_cut_off: why the server has ended it, if it has.
    """

    stream: AsyncStream
    body: GenerationBody
    _: KW_ONLY
    prompt: tuple[int, ...]
    arrival_s: float
    seed: int | None
    text: TextStream | None
    timeout_s: float | None
    ended: Callable[[Answer], None]
    index: int = 0
    number: int = 0
    finish: Finish | None = None
    stop_reason: str | int | None = None
    why_cut_off: str = ""
    commits_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.usage = Usage(len(self.prompt))
        self._stops = StopScanner(self.body.stop, include=self.body.include_stop_str_in_output)
        self._offset = 0
        self._until_s = None if self.timeout_s is None else asyncio.get_running_loop().time() + self.timeout_s

    def cut_off(self, why: str) -> None:
        self.why_cut_off = why
        self.stream.cancel()

    async def start(self) -> None:
        """Wait for the first piece. ValueError, EngineError or TimeoutError, with a sentence, if none comes."""
        try:
            async with asyncio.timeout_at(self._until_s):
                await self.stream.wait()
        except TimeoutError:
            raise TimeoutError(f"the request took longer than {self.timeout_s:g} s") from None
        except EngineBusyError:
            raise
        except EngineError as error:  # what it says is for the log: it may have names of files
            _log.error("%s", error)
            raise EngineError("the engine failed while this request ran; the server's log says why") from error

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while self.finish is None:
            await self.start()
            if not self.stream.has_more_now:  # it was ended early
                raise EngineError(self.why_cut_off or "the request was ended")
            chunk = await anext(self.stream)
            self.commits_s.append(time.perf_counter())
            if self.text is None:
                self.usage.completion_tokens += len(chunk.token_ids)
                piece = Piece(chunk.text, chunk.finish, chunk.token_ids)
            else:
                piece = self._by_tokens(chunk, self.text)
            self.finish = piece.finish
            if self.finish == "stop" and self.stop_reason is None and piece.token_ids[-1] in self.body.stop_token_ids:
                self.stop_reason = piece.token_ids[-1]
            yield piece._replace(is_first=len(self.commits_s) == 1)

    def _by_tokens(self, chunk: Chunk, stream: TextStream) -> Piece:
        """A chunk up to a stop text, which is looked for after every token; with what is wanted of each token."""
        texts: list[str] = []
        given: list[str] = []
        is_ended = chunk.finish == "stop" and not self.body.include_stop_str_in_output
        for number, token in enumerate(chunk.token_ids, start=1):
            self.usage.completion_tokens += 1
            texts.append("" if is_ended and number == len(chunk.token_ids) else stream.push((token,)))
            given.append(self._stops.push(texts[-1], may_stop=self.usage.completion_tokens > self.body.min_tokens))
            if self._stops.stopped is not None:
                break
        self.stop_reason, finish = self._stops.stopped, chunk.finish
        if self.stop_reason is not None:
            finish = "stop"
        elif finish is not None:
            rest = stream.flush()
            given.append(self._stops.push(rest) + self._stops.flush())
            if texts:
                texts[-1] += rest

        def named(candidate: int, score: float) -> tuple[str, float]:
            return stream.name(candidate), score

        told = zip(chunk.token_ids, texts, chunk.log_probs, chunk.candidates, strict=False)  # perhaps of no token
        scored = tuple(
            ScoredToken(token, text or stream.name(token), log_prob, tuple(map(named, *likely)))
            for token, text, log_prob, likely in told
        )
        piece = Piece("".join(given), finish, chunk.token_ids[: len(texts)], scored, self._offset)
        self._offset += sum(map(len, texts))
        return piece

    def scores(self) -> Generation:
        """The record of a prompt that was scored, which ends the answer. EngineError if it was ended early."""
        if self.stream.generation is None or self.stream.generation.interrupted:
            raise EngineError(self.why_cut_off or "the request was ended")
        self.finish, self.usage.completion_tokens = "length", len(self.stream.generation.tokens)
        return self.stream.generation

    async def close(self) -> None:
        """End it, if it has not ended, and count it; that happens even if the caller is cancelled meanwhile."""

        async def end() -> None:
            await self.stream.close()
            self.ended(self)

        await asyncio.shield(asyncio.ensure_future(end()))
