"""The engine for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

from swiftspec.artifacts.plan import Plan
from swiftspec.engine.api import Chunk, Engine, Stats

__all__ = ["AsyncEngine"]


class AsyncEngine:
    """`Engine` for asyncio; an asynchronous context manager, whose processes start on entering.

    Requests of several tasks run together, as in `Engine`. Nothing blocks the event loop.

    Parameters
    ----------
    plan : Plan, str or Path
        A plan, or the file that `swiftspec plan` wrote.
    **options
        As of `Engine`.

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.shield(self._call(engine.close))
        self._thread.shutdown(wait=False)

    async def generate(self, prompt: str | Sequence[int], **options: Any) -> AsyncIterator[Chunk]:
        """Continue a prompt: a chunk for every commit. A task that is cancelled ends its request.

        Parameters
        ----------
        prompt : str, or sequence of int
            A text, or token ids.
        **options
            As of `Engine.generate`.

        Yields
        ------
        Chunk

        Raises
        ------
        ValueError, swiftspec.errors.EngineError
            As `Engine.generate`, on the first chunk.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[tuple[Chunk, ...], Any]]()

        def deliver(chunks: tuple[Chunk, ...], end: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(events.put_nowait, (chunks, end))

        cancel = await self._call(partial(self._running.submit, prompt, deliver, **options))
        end = None
        try:
            while end is None:
                chunks, end = await events.get()
                for chunk in chunks:
                    yield chunk
        finally:
            if end is None:
                cancel()
                await asyncio.shield(_ended(events))
        if isinstance(end, Exception):
            raise end

    def stats(self) -> Stats:
        """Figures of the finished requests; ValueError outside `async with`."""
        return self._running.stats()

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise ValueError("the engine is not running; use it in an `async with`")
        return self._engine

    async def _call(self, function: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


async def _ended(events: asyncio.Queue[tuple[tuple[Chunk, ...], Any]]) -> None:
    """Wait for the end of a request whose chunks nobody wants any more."""
    while (await events.get())[1] is None:
        pass
