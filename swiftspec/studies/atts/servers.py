"""Servers that continue and score texts: over HTTP, or engines of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol, TypeVar

from pydantic import Field

from swiftspec.files.reading import MOST_JSON_BYTES
from swiftspec.loadtest import ServerClient
from swiftspec.loadtest.answers import Part
from swiftspec.studies.atts.conformal import perplexity

if TYPE_CHECKING:
    from swiftspec.engine.async_api import AsyncEngine

_TOO_LONG = "maximum context length"  # in the sentences of OpenAI's servers, vLLM's and ours
_LEAST_LOG_PROB = -1e4  # vLLM has -9999 for what is impossible
_ROUNDING = 1e-3
_LogProb = Annotated[float, Field(ge=_LEAST_LOG_PROB, le=_ROUNDING, strict=True)]
_Answer = TypeVar("_Answer")


class _Scores(Part):
    tokens: tuple[str, ...]
    token_logprobs: tuple[_LogProb | None, ...]


class _Scoring(Part):
    logprobs: _Scores | None = None


class _ScoredText(Part):
    """A prompt with the log-probs of its tokens; without them, from a server that does not score prompts."""

    choices: Annotated[tuple[_Scoring, ...], Field(min_length=1)]


def scored_prompt(client: ServerClient, prompt: str, *, model: str) -> list[tuple[str, float | None]]:
    """Tokens of a text and their log-probs, None of the first. ValueError if the server cannot score prompts."""
    body = {"model": model, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = client.answered(_ScoredText, "/v1/completions", body, most_bytes=MOST_JSON_BYTES)
    scored = answer.choices[0].logprobs
    if scored is None or len(scored.tokens) != len(scored.token_logprobs):
        raise ValueError(f"--url {client.url}: the server does not score prompts (echo with max_tokens 0)")
    return list(zip(scored.tokens, scored.token_logprobs, strict=True))


class ContextFullError(Exception):
    """Error: a text has no room in a server's context."""


class Segment(NamedTuple):
    """A piece of text. has_ended: whether the model ended its text there."""

    text: str
    num_tokens: int
    has_ended: bool


class TextServer(Protocol):
    """A server of one model. Both methods raise ContextFullError if the text has no room."""

    async def write(self, text: str, *, num_tokens: int, temperature: float, seed: int) -> Segment:
        """Continue a text by `num_tokens` at most. The same seed gives the same segment."""

    async def score(self, text: str, *, num_characters: int) -> float:
        """Perplexity of the last characters of a text after those before them."""

    async def count(self, text: str) -> int:
        """Tokens of a text."""


def end_perplexity(tokens: Iterable[tuple[str, float | None]], num_characters: int) -> float:
    """Perplexity of the last characters of a scored text, given its tokens' texts and log-probs.

    A token counts if any of its characters does: texts of two segments may meet in one. ValueError if there is none.
    """
    found: list[float] = []
    for text, log_prob in reversed(list(tokens)):
        if num_characters <= 0:
            break
        num_characters -= len(text)
        if log_prob is not None:
            found.append(log_prob)
    return perplexity(found)


class HttpServer:
    """A server of OpenAI's API with prompt scoring, such as `swiftspec serve` or vLLM."""

    def __init__(self, client: ServerClient, *, num_calls: int) -> None:
        self._client = client
        self._model = client.model()
        self._threads = ThreadPoolExecutor(num_calls, thread_name_prefix="swiftspec-atts")

    async def write(self, text: str, *, num_tokens: int, temperature: float, seed: int) -> Segment:
        """As `TextServer.write`."""
        written = await self._call(
            partial(
                self._client.write, text, model=self._model, num_tokens=num_tokens, temperature=temperature, seed=seed
            )
        )
        return Segment(written.text, written.num_tokens, written.finish == "stop")

    async def score(self, text: str, *, num_characters: int) -> float:
        """As `TextServer.score`."""
        scored = await self._call(partial(scored_prompt, self._client, text, model=self._model))
        try:
            return end_perplexity(scored, num_characters)
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"--url {self._client.url}: the log-probs of a text have no perplexity ({error})"
            ) from error

    async def count(self, text: str) -> int:
        """As `TextServer.count`."""
        return len(await self._call(partial(self._client.tokenize, text, model=self._model)))

    async def _call(self, function: Callable[[], _Answer]) -> _Answer:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except ValueError as error:
            if _TOO_LONG in str(error):
                raise ContextFullError from error
            raise


class EngineServer:
    """An engine of this process."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def write(self, text: str, *, num_tokens: int, temperature: float, seed: int) -> Segment:
        """As `TextServer.write`."""
        prompt = await self._prompt(text, num_tokens)
        asked = {"max_new_tokens": num_tokens, "temperature": temperature, "seed": seed}
        chunks = [chunk async for chunk in self._engine.generate(prompt, **asked)]
        num_written = sum(len(chunk.token_ids) for chunk in chunks)
        return Segment(
            "".join(chunk.text for chunk in chunks), num_written, any(chunk.finish == "stop" for chunk in chunks)
        )

    async def score(self, text: str, *, num_characters: int) -> float:
        """As `TextServer.score`."""
        scored = await self._engine.score(await self._prompt(text, 1))
        return end_perplexity(((token.text, token.log_prob) for token in scored), num_characters)

    async def count(self, text: str) -> int:
        """As `TextServer.count`."""
        return len(await self._engine.tokenize(text))

    async def _prompt(self, text: str, num_tokens: int) -> tuple[int, ...]:
        prompt = await self._engine.tokenize(text)
        if len(prompt) + num_tokens > self._engine.max_context:
            raise ContextFullError
        return prompt
