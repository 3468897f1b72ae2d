"""A plan's processes as an object: prompts in turn on warm models, their text as it is committed.

`Engine` is for programs that wait, `AsyncEngine` for those that have an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from swiftspec.artifacts.basis import candidate_of
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.timeline import Totals
from swiftspec.engine.checks import ContextLimit, check_devices
from swiftspec.engine.tasks import Task, warm_up
from swiftspec.errors import EngineError
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tokenizer import TextStream, Tokenizer
from swiftspec.policies import Request

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Generation, ProcessInfo
    from swiftspec.engine.model.sampler import AcceptanceMethod, Sampler
    from swiftspec.engine.process.placement import Executor

__all__ = ["AsyncEngine", "Chunk", "Engine", "Stats"]

_MAX_CONTEXT = 4096  # unless told otherwise: caches are as long


class Chunk(NamedTuple):
    """What one commit brought: token ids, and the text that they complete, which may be none yet."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Of all requests so far.

    Parameters
    ----------
    requests, prompt_tokens, tokens : int
        `tokens` of output.
    tokens_per_s, tokens_per_round : float
        From request to last token; 0 before the first request.
    losses : int
        How often the target went on without its draft.
    restarts : int
        How often the draft was started again.
    """

    requests: int
    prompt_tokens: int
    tokens: int
    tokens_per_s: float
    tokens_per_round: float
    losses: int
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """Sums over the finished requests. Replaced as a whole, since another thread may read it."""

    totals: Totals = field(default_factory=Totals)
    prompt_tokens: int = 0
    losses: int = 0

    def plus(self, generation: Generation, *, prompt_tokens: int) -> _Past:
        return _Past(
            totals=self.totals.plus(generation.timeline),
            prompt_tokens=self.prompt_tokens + prompt_tokens,
            losses=self.losses + generation.losses,
        )


class Engine:
    """A plan, running; a context manager.

    Parameters
    ----------
    plan : Plan, str or Path
        Or the file that `swiftspec plan` wrote.
    policy : str, optional
        One of the plan's alternatives; its choice if not given.
    max_context : int, optional
        Prompt and output tokens of the longest request; what the model knows, but 4096 at most, if not given.
    max_restarts : int
        How often within an hour a draft that died is started again. When it may not be, the target decodes alone,
        and a warning of the logger `swiftspec` says so.
    cancelled : threading.Event, optional
        Set by another thread, it ends the start.

    Raises
    ------
    ValueError
        If the plan has no such policy, is for another machine, or its models cannot be loaded.
    EngineError
        If a process ends while it loads.
    InterruptedError
        If the start was cancelled.

    Examples
    --------
    >>> with swiftspec.Engine("plan.json") as engine:
    ...     for chunk in engine.generate("def main():"):
    ...         print(chunk.text, end="")
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        *,
        policy: str | None = None,
        max_context: int | None = None,
        max_restarts: int = 3,
        executor: Executor | None = None,
        cancelled: Event | None = None,
    ) -> None:
        made = plan if isinstance(plan, Plan) else Plan.load(Path(plan))
        candidate = candidate_of(made, policy)
        source = "plan" if isinstance(plan, Plan) else str(plan)
        check_devices(made, [candidate] if executor is None else [], source=source)
        directory = model_directory(made.target.model)
        spec = ModelSpec.from_directory(directory)
        self._candidate = candidate
        self._policy = candidate.build()
        self._max_new_tokens = made.max_new_tokens
        self._eos_token_ids = frozenset(spec.eos_token_ids)
        self._vocab_size = spec.vocab_size
        self._tokenizer = Tokenizer(directory)
        most = ContextLimit.of_model(spec, [self._policy], model=made.target.model).most
        if max_context is not None and not 0 < max_context <= most:
            raise ValueError(f"max_context is {max_context}; expected 1 to {most}, which {made.target.model} allows")
        self.max_context = max_context or min(most, _MAX_CONTEXT)
        self._past = _Past()
        self._num_begun = 0
        self._is_busy = False
        from swiftspec.engine.launcher import Launcher

        self._launcher = Launcher.for_candidate(
            made,
            candidate,
            max_context=self.max_context,
            max_restarts=max_restarts,
            executor=executor,
            cancelled=cancelled,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process."""
        self._launcher.close()

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        acceptance_method: AcceptanceMethod = "follow",
        request_id: str | None = None,
        cancelled: Event | None = None,
    ) -> Generator[Chunk, None, Generation]:
        """A text, or token ids, continued: a chunk for every commit. Closing the generator ends the request.

        Parameters
        ----------
        max_new_tokens : int, optional
            The plan's if not given.
        temperature : float
            0 is greedy.
        top_p, top_k, seed
            As in `swiftspec run`.
        cancelled : threading.Event, optional
            Set by another thread, it ends the request, also while that waits for a token.

        Raises
        ------
        ValueError
            If a parameter makes no sense, the prompt is empty, too long or has tokens that the model does not know, or
            another request is running.
        EngineError
            If the target died; the chunks before it are what it had committed.
        """
        from swiftspec.engine.model.sampler import Sampler

        sampler = Sampler(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, acceptance=acceptance_method)
        task = Task(prompt_id=request_id or str(self._num_begun), request=self._request(prompt, max_new_tokens))
        self._num_begun += 1
        return self._chunks(task, sampler, cancelled or Event())

    def warm_up(self, prompt: str | Sequence[int], *, max_new_tokens: int | None = None) -> None:
        """Let the models do what makes a first request slower than later ones, such as the allocation of buffers.

        Continues the prompt greedily by a few tokens, no more than `max_new_tokens`; `stats` does not count them.

        Raises
        ------
        ValueError, EngineError
            As `generate`.
        KeyboardInterrupt
            If a signal cut it short.
        """
        task = Task(prompt_id="warm-up", request=self._request(prompt, max_new_tokens))
        warm_up(self._launcher, self._candidate, task)

    def _request(self, prompt: str | Sequence[int], max_new_tokens: int | None) -> Request:
        tokens = self._tokenizer.encode(prompt, most=self.max_context) if isinstance(prompt, str) else tuple(prompt)
        if wrong := [token for token in tokens if not 0 <= token < self._vocab_size]:
            raise ValueError(f"prompt has token {wrong[0]}; expected 0 to {self._vocab_size - 1}")
        return Request(
            prompt=tokens,
            max_new_tokens=self._max_new_tokens if max_new_tokens is None else max_new_tokens,
            eos_token_ids=self._eos_token_ids,
        )

    def _chunks(self, task: Task, sampler: Sampler, cancelled: Event) -> Generator[Chunk, None, Generation]:
        if self._is_busy:
            raise ValueError("generate was called while another request is running; finish it, or close its generator")
        self._is_busy = True
        try:
            commits = self._launcher.stream(
                self._policy, task.request, request_id=task.prompt_id, sampler=sampler, interrupted=cancelled
            )
            with closing(commits):
                generation = yield from _as_text(commits, self._tokenizer.stream())
            if not generation.interrupted:
                self._past = self._past.plus(generation, prompt_tokens=len(task.request.prompt))
            return generation
        finally:
            self._is_busy = False

    @property
    def processes(self) -> tuple[ProcessInfo, ...]:
        """Role, process id and cores of every process; without the draft's while that is started again."""
        return self._launcher.processes

    def stats(self) -> Stats:
        """Figures of the requests that were finished: from sums, at once, however many there were."""
        past = self._past
        return Stats(
            requests=past.totals.requests,
            prompt_tokens=past.prompt_tokens,
            tokens=past.totals.tokens,
            tokens_per_s=past.totals.tokens_per_s,
            tokens_per_round=past.totals.tokens_per_round,
            losses=past.losses,
            restarts=self._launcher.num_restarts,
        )


def _as_text(
    commits: Generator[tuple[int, ...], None, Generation], text: TextStream
) -> Generator[Chunk, None, Generation]:
    """Commits with the text that they complete; what is left of it comes last, also before an EngineError."""
    try:
        while True:
            tokens = next(commits)
            yield Chunk(tokens, text.push(tokens))
    except (StopIteration, EngineError) as ended:
        if rest := text.flush():
            yield Chunk((), rest)
        if isinstance(ended, EngineError):
            raise
        generation: Generation = ended.value
        return generation


class AsyncEngine:
    """`Engine` for asyncio: requests that come while one is running wait their turn.

    Parameters are those of `Engine`, whose processes are started on entering.

    Examples
    --------
    >>> async with swiftspec.AsyncEngine("plan.json") as engine:
    ...     async for chunk in engine.generate("def main():"):
    ...         print(chunk.text, end="")
    """

    def __init__(self, plan: Plan | str | Path, **options: Any) -> None:
        self._start = partial(Engine, plan, **options)
        # One thread for all that blocks: closing a request waits until its last look for tokens is over.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="swiftspec")
        self._turn = asyncio.Lock()
        self._cancelled = Event()  # of the request under way, for which the thread may be waiting
        self._engine: Engine | None = None

    async def __aenter__(self) -> Self:
        cancelled = Event()
        started = asyncio.ensure_future(self._call(partial(self._start, cancelled=cancelled)))
        try:
            self._engine = await asyncio.shield(started)
        except asyncio.CancelledError:
            # Nobody would ever close what is on its way.
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
        self._cancelled.set()
        if engine is not None:
            await asyncio.shield(self._call(engine.close))
        self._thread.shutdown(wait=False)

    async def generate(self, prompt: str | Sequence[int], **options: Any) -> AsyncIterator[Chunk]:
        """As `Engine.generate`; a task that is cancelled ends its request."""
        async with self._turn:
            self._cancelled = cancelled = Event()
            # In the thread, too: a long prompt takes seconds to tokenise.
            stream = await self._call(partial(self._running.generate, prompt, cancelled=cancelled, **options))
            try:
                while (chunk := await self._call(partial(next, stream, None))) is not None:
                    yield chunk
            finally:
                cancelled.set()
                await asyncio.shield(self._call(stream.close))

    def stats(self) -> Stats:
        """Figures of the requests that were finished."""
        return self._running.stats()

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise ValueError("the engine is not running; use it in an `async with`")
        return self._engine

    async def _call(self, function: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
