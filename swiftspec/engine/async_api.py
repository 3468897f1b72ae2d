"""The engine for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Self, TypeVar

from swiftspec.artifacts.plan import Plan
from swiftspec.engine.api import Chunk, Engine, EngineState, ScoredToken, Stats
from swiftspec.engine.requests import Tenant

if TYPE_CHECKING:
    from swiftspec.engine.running import Generation
    from swiftspec.models.tokenizer import TextStream

_MOST_CHUNKS = 64  # that wait for a consumer
Result = TypeVar("Result")


class AsyncEngine:
    """`Engine` for asyncio; an asynchronous context manager, whose processes start on entering.

    Requests of several tasks run together, as in `Engine`. Nothing blocks the event loop.

    Parameters
    ----------
    plan : Plan, str or Path
        A plan, or the file that `swiftspec plan` wrote.
    **options
        Options of `Engine`.

    Raises
    ------
    ValueError, swiftspec.errors.EngineError
        On entering, as `Engine`. A start that is cancelled leaves no process behind.

    Examples
    --------
    >>> async def main():
    ...     async with swiftspec.AsyncEngine("plan.json") as engine:
    ...         async for chunk in engine.generate("def main():", max_new_tokens=16):
    ...             print(chunk.text, end="")
    >>> import asyncio
    >>> asyncio.run(main())
    """

    def __init__(self, plan: Plan | str | Path, **options: Any) -> None:
        self._start = partial(Engine, plan, **options)
        # For what blocks: starting, closing, and tokenising a long prompt, which takes seconds.
        self._thread = ThreadPoolExecutor(max_workers=2, thread_name_prefix="swiftspec")
        self._engine: Engine | None = None
        self._bridge: _Bridge | None = None

    async def __aenter__(self) -> Self:
        cancelled = Event()
        started = asyncio.ensure_future(self._call(partial(self._start, cancelled=cancelled)))
        try:
            self._engine = await asyncio.shield(started)
        except asyncio.CancelledError:
            # Nobody else could close the engine that is being started.
            cancelled.set()
            started.add_done_callback(self._close_unwanted)
            with suppress(Exception):
                await asyncio.shield(started)
            raise
        return self

    def _close_unwanted(self, started: asyncio.Future[Engine]) -> None:
        if not started.cancelled() and started.exception() is None:
            self._thread.submit(started.result().close)

    async def __aexit__(self, *_: object) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.shield(self._call(engine.close))
        self._thread.shutdown(wait=False)

    async def generate(self, prompt: str | Sequence[int], **options: Any) -> AsyncIterator[Chunk]:
        """Continue a prompt: a chunk for every commit. A task that is cancelled ends its request.

        Arguments are those of `Engine.generate`, and so are errors, on the first chunk.
        """
        stream = await self.submit(prompt, **options)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await asyncio.shield(stream.close())

    async def submit(self, prompt: str | Sequence[int], **options: Any) -> AsyncStream:
        """Continue a prompt: a stream that can be asked what is there, cancelled, and has the record of the request.

        Arguments and errors are those of `generate`. Whoever asks for a stream closes it.
        """
        return await self._begun(partial(self._running.submit, prompt), options)

    async def _begun(self, submit: Callable[..., Callable[[], None]], options: Mapping[str, Any]) -> AsyncStream:
        if self._bridge is None:
            self._bridge = _Bridge(asyncio.get_running_loop())
        stream = AsyncStream(self._bridge)
        stream.cancel = await self._call(partial(submit, deliver=stream.deliver, **options))
        return stream

    async def score(
        self, prompt: str | Sequence[int], *, num_candidates: int = 0, tenant: str | None = None
    ) -> tuple[ScoredToken, ...]:
        """Score a text, see `Engine.score`. A task that is cancelled ends its request."""
        tokens = await self.tokenize(prompt) if isinstance(prompt, str) else tuple(prompt)
        stream = await self.submit_scoring(tokens, num_candidates=num_candidates, tenant=tenant)
        try:
            await stream.wait()
            assert stream.generation is not None, "a stream without chunks has ended"
            return await self.scored(tokens, stream.generation)
        finally:
            await asyncio.shield(stream.close())

    async def submit_scoring(self, prompt: Sequence[int], **options: Any) -> AsyncStream:
        """Begin to score a prompt: a stream without chunks; `scored` makes tokens of its `generation`."""
        return await self._begun(partial(self._running.submit_scoring, prompt), options)

    async def scored(self, prompt: Sequence[int], generation: Generation) -> tuple[ScoredToken, ...]:
        """The tokens of a prompt that was scored."""
        return await self._call(partial(self._running.scored, prompt, generation))

    async def warm_up(self, prompt: str | Sequence[int], *, max_new_tokens: int | None = None) -> None:
        """Run a short request, see `Engine.warm_up`."""
        await self._call(partial(self._running.warm_up, prompt, max_new_tokens=max_new_tokens))

    async def tokenize(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text, see `Engine.tokenize`."""
        return await self._call(partial(self._running.tokenize, text, special_tokens=special_tokens))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids, see `Engine.detokenize`."""
        return await self._call(partial(self._running.detokenize, tokens))

    def text_stream(self) -> TextStream:
        """A decoder of tokens that come one by one."""
        return self._running.text_stream()

    @property
    def max_context(self) -> int:
        """Tokens of the longest request, prompt and output together."""
        return self._running.max_context

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """The target, and its fine-tunes and adapters."""
        return self._running.tenants

    def state(self) -> EngineState:
        """Requests that run and wait, use of the caches, and the state of the draft."""
        return self._running.state()

    def stats(self) -> Stats:
        """Figures of the finished requests; ValueError outside `async with`."""
        return self._running.stats()

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise ValueError("the engine is not running; use it in an `async with`")
        return self._engine

    async def _call(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


class _Bridge:
    """Calls from another thread into an event loop; those that come together wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls = deque[Callable[[], None]]()
        self._is_due = False

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called by the loop; nothing happens if it has ended."""
        self._calls.append(function)
        if not self._is_due:
            self._is_due = True
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_due = False  # before the calls: what comes from now on wakes the loop again
        while self._calls:
            self._calls.popleft()()


class AsyncStream:
    """The output of one request: an asynchronous iterator over its chunks, merged when many are not taken.

    generation: the record of the request, once it has ended well. cancel: ends it early; its chunks end soon after.
    """

    def __init__(self, bridge: _Bridge) -> None:
        self.generation: Generation | None = None
        self.cancel: Callable[[], None] = lambda: None
        self._bridge = bridge
        self._chunks = deque[Chunk]()
        self._failure: Exception | None = None
        self._has_ended = False
        self._news = asyncio.Event()

    def deliver(self, chunks: tuple[Chunk, ...], end: Generation | Exception | None) -> None:
        """Take what `Engine.submit` delivers, in another thread."""
        self._bridge.call(partial(self._take, chunks, end))

    def _take(self, chunks: tuple[Chunk, ...], end: Generation | Exception | None) -> None:
        for chunk in chunks:
            if len(self._chunks) >= _MOST_CHUNKS:
                chunk = self._chunks.pop().joined(chunk)
            self._chunks.append(chunk)
        if isinstance(end, Exception):
            self._failure, self._has_ended = end, True
        elif end is not None:
            self.generation, self._has_ended = end, True
        self._news.set()

    @property
    def has_more_now(self) -> bool:
        return bool(self._chunks)

    async def wait(self) -> None:
        """Wait for a chunk, or the end. Raises what ended the request, if it has no chunk."""
        while not self._chunks and not self._has_ended:
            self._news.clear()
            await self._news.wait()
        if self._failure is not None and not self._chunks:
            raise self._failure

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        await self.wait()
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.popleft()

    async def close(self) -> None:
        """End the request, if it has not ended, and wait for that."""
        if not self._has_ended:
            self.cancel()
        while not self._has_ended:
            self._news.clear()
            await self._news.wait()
