"""The output of a request as its client gets it: text up to a stop text, counted, and ended in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from swiftspec.errors import EngineBusyError, EngineError
from swiftspec.server.replies import Usage

if TYPE_CHECKING:
    from swiftspec.engine.api import Chunk, Finish, Generation
    from swiftspec.engine.async_api import AsyncStream
    from swiftspec.models.tokenizer import TextStream
    from swiftspec.server.bodies import GenerationBody

__all__ = ["Answer", "StopScanner"]

_log = logging.getLogger("swiftspec.server")


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


class Answer:
    """Output of a request as text: an asynchronous iterator over its pieces, each with the reason if it is the last.

    Parameters
    ----------
    stream : AsyncStream
    body : GenerationBody
    prompt : tuple of int
        Token ids.
    arrival_s : float
        When the request came.
    seed : int or None
        By which it is sampled; None if it is greedy.
    text : TextStream or None
        Makes text of tokens one by one, if there are stop texts: output ends with the token that completes one, however
        many tokens came with it.
    timeout_s : float or None
        Longest time until its last token.
    ended : callable
        Called with it at its end.

    Attributes
    ----------
    usage : Usage
        So far.
    finish : "stop", "length" or None
        Why it has ended.
    commits_s : list of float
        When its commits so far were there for the client.
    generation : Generation or None
        The engine's record of it, after `close`.
    """

    def __init__(
        self,
        stream: AsyncStream,
        body: GenerationBody,
        *,
        prompt: tuple[int, ...],
        arrival_s: float,
        seed: int | None,
        text: TextStream | None,
        timeout_s: float | None,
        ended: Callable[[Answer], None],
    ) -> None:
        self.body = body
        self.prompt = prompt
        self.seed = seed
        self.usage = Usage(len(prompt))
        self.finish: Finish | None = None
        self.number = 0
        self.arrival_s = arrival_s
        self.commits_s: list[float] = []
        self._stream = stream
        self._text = text
        self._stops = StopScanner(body.stop)
        self._ended = ended
        self._cut_off = ""
        self._closing: asyncio.Future[None] | None = None
        self._timeout_s = timeout_s
        self._until_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    @property
    def generation(self) -> Generation | None:
        return self._stream.generation

    @property
    def is_cut_off(self) -> bool:
        """Whether the server ended it."""
        return bool(self._cut_off)

    @property
    def has_more_now(self) -> bool:
        """Whether the next piece is there already."""
        return self._stream.has_more_now

    def cut_off(self, why: str) -> None:
        """End it with an error."""
        self._cut_off = why
        self._stream.cancel()

    async def start(self) -> None:
        """Wait for the first piece. ValueError, EngineError or TimeoutError, with a sentence, if none comes."""
        try:
            async with asyncio.timeout_at(self._until_s):
                await self._stream.wait()
        except TimeoutError:
            raise TimeoutError(f"the request took longer than {self._timeout_s:g} s") from None
        except EngineBusyError:
            raise
        except EngineError as error:  # what it says is for the log: it may have names of files
            _log.error("%s", error)
            raise EngineError("the engine failed while this request ran; the server's log says why") from error

    async def __aiter__(self) -> AsyncIterator[tuple[str, Finish | None]]:
        while self.finish is None:
            await self.start()
            if not self._stream.has_more_now:  # it was ended early
                raise EngineError(self._cut_off or "the request was ended")
            chunk = await anext(self._stream)
            self.commits_s.append(time.perf_counter())
            if self._text is None:
                self.usage.completion_tokens += len(chunk.token_ids)
                text, self.finish = chunk.text, chunk.finish
            else:
                text = self._until_stop(chunk, self._text)
            yield text, self.finish

    def _until_stop(self, chunk: Chunk, stream: TextStream) -> str:
        """The text of a chunk up to a stop text, which is looked for after every token."""
        pieces: list[str] = []
        for token in chunk.token_ids:
            self.usage.completion_tokens += 1
            pieces.append(self._stops.push(stream.push((token,))))
            if self._stops.has_stopped:
                break
        if chunk.finish is not None and not self._stops.has_stopped:
            pieces.append(self._stops.push(stream.flush()) + self._stops.flush())
        self.finish = "stop" if self._stops.has_stopped else chunk.finish
        return "".join(pieces)

    def scores(self) -> Generation:
        """The record of a prompt that was scored, which ends the answer. EngineError if it was ended early."""
        if self.generation is None or self.generation.interrupted:
            raise EngineError(self._cut_off or "the request was ended")
        self.finish, self.usage.completion_tokens = "length", len(self.generation.tokens)
        return self.generation

    async def close(self) -> None:
        """End it, if it has not ended, and count it; that happens even if the caller is cancelled meanwhile."""
        self._closing = asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        await self._stream.close()
        self._ended(self)
