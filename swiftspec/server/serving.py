"""The engine as the server's handlers use it: requests checked, begun and counted."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftspec.models.config_json import GenerationConfig
from swiftspec.server.answer import Answer
from swiftspec.server.bodies import ChatBody, CompletionBody, ScoringBody, TokenizeBody
from swiftspec.server.chat_template import TemplateSource
from swiftspec.server.conversation import Message
from swiftspec.server.errors import RequestError
from swiftspec.server.metrics import Metrics
from swiftspec.server.renderer import Renderer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from swiftspec.engine.api import EngineState, ScoredToken
    from swiftspec.engine.async_api import AsyncEngine, AsyncStream
    from swiftspec.timing.timeline import Timeline

_COMPLETION_TOKENS = 16  # of completions that do not say, as of OpenAI's API


class ServerPhase(StrEnum):
    """Where a server stands."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What a server promises its clients.

    model: its name; tenants have the names that the engine knows. request_timeout_s: from arrival to the last token.
    generation_config: take what requests do not say of sampling from each model's generation_config.json.
    keep_timelines: the last requests, whose timelines can be asked for.
    api_keys: one of them is needed, unless there are none. allowed_hosts: see `known_hosts`.
    send_timeout_s: a client that takes nothing for so long is given up. drain_s: time to end after the first signal.
    """

    model: str
    request_timeout_s: float | None = None
    chat_template: Path | None = None
    generation_config: bool = True
    keep_timelines: int = 0
    api_keys: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    send_timeout_s: float
    drain_s: float


class Serving:
    """Requests of a server. answers: those under way, in the order of their arrival."""

    def __init__(self, options: ServingOptions) -> None:
        self.phase = ServerPhase.STARTING
        self.metrics = Metrics(self.state)
        self.answers: dict[int, Answer] = {}
        self.timelines: deque[Timeline] = deque(maxlen=options.keep_timelines)
        self.options, self.model = options, options.model
        self._engine: AsyncEngine | None = None
        self._tenants: dict[str, str | None] = {options.model: None}  # what the engine calls each served model
        self._defaults: dict[str, Mapping[str, float]] = {}  # of each served model's sampling
        self._templates: dict[str, int] = {}  # number of each served model's, if it has one
        self._renderer = Renderer(())
        self._numbers = count(1)  # of answers, in the order of their arrival
        self.idle = asyncio.Event()  # no request is under way
        self.idle.set()

    async def open(self, engine: AsyncEngine) -> None:
        """Accept requests. ValueError if a chat template is none."""
        base, *tenants = engine.tenants
        self._tenants |= {tenant.name: tenant.name for tenant in tenants}
        found: dict[str, TemplateSource] = {}
        for name, tenant in zip(self._tenants, (base, *tenants), strict=True):  # what a tenant lacks is the base's
            if self.options.generation_config:
                own = GenerationConfig.read(tenant.directory).sampling
                self._defaults[name] = own or self._defaults.get(self.model, {})
            source = TemplateSource.of(tenant.directory, self.options.chat_template) or found.get(self.model)
            if source is not None:
                found[name] = source
        self._templates = {name: number for number, name in enumerate(found)}
        self._renderer = Renderer(list(found.values()))
        if found:
            await self._renderer.start()
        self._engine, self.phase = engine, ServerPhase.READY

    async def close(self) -> None:
        """End what is not the engine's."""
        await self._renderer.close()

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._tenants)

    @property
    def max_context(self) -> int | None:
        """Tokens of the longest request; None until the engine is there."""
        return self._engine.max_context if self._engine else None

    def state(self) -> EngineState | None:
        return self._engine.state() if self._engine else None

    def check_open(self) -> AsyncEngine:
        """The engine. RequestError unless requests are accepted."""
        if self.phase is not ServerPhase.READY or self._engine is None:
            why = {
                ServerPhase.STARTING: "is starting",
                ServerPhase.DRAINING: "is shutting down",
                ServerPhase.FAILED: "has failed",
            }
            raise RequestError(f"the server {why.get(self.phase, 'is not ready')}", status=503, code=self.phase)
        return self._engine

    def check_model(self, name: str | None) -> None:
        """RequestError unless a request is for the served model, or does not say for which."""
        if name is not None and name not in self._tenants:
            raise RequestError(
                f"model is {name!r}; this server has {', '.join(map(repr, self.models))}",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def tokens_of(self, body: CompletionBody | ChatBody) -> tuple[int, ...]:
        """Token ids of a request's prompt. RequestError if it has none, or the model knows no conversations."""
        if isinstance(body, ChatBody):
            return await self.tokens_of_chat(body, body.messages)
        prompt, engine = body.one_prompt, self.check_open()
        if not isinstance(prompt, str):
            return prompt
        return await engine.tokenize(prompt, special_tokens=body.add_special_tokens)

    async def tokens_of_chat(self, body: ChatBody | TokenizeBody, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation. RequestError without a chat template, or if that refuses it."""
        engine, name = self.check_open(), body.model or self.model
        if (template := self._templates.get(name)) is None:
            raise RequestError(
                f"{name} has no chat template; expected /v1/completions, or a server with --chat-template"
            )
        try:
            text = await self._renderer.render(template, body.conversation(messages))
        except ValueError as error:
            raise RequestError(str(error), param="messages") from error
        return await engine.tokenize(text, special_tokens=bool(body.add_special_tokens))

    async def begin(
        self, body: CompletionBody | ChatBody, *, request_id: str, client: str, arrival_s: float
    ) -> list[Answer]:
        """Give a request to the engine: as many answers as it wants. RequestError if it is not possible."""
        engine = self.check_open()
        self.check_model(body.model)
        tokens = await self.tokens_of(body)
        most = self._most_tokens(body, len(tokens), engine.max_context)
        if body.min_tokens > most:
            raise RequestError(f"min_tokens is {body.min_tokens}; expected {most} at most", param="min_tokens")
        sampling = body.sampling(self._defaults_of(body))
        by_tokens = body.stop or body.include_stop_str_in_output or body.num_log_probs is not None
        answers: list[Answer] = []
        try:
            for index in range(body.n):
                name = f"{request_id}-{index}" if index else request_id
                own = sampling | {"seed": (sampling["seed"] + index) % 2**64}
                stream = await self._submit(body, tokens, most, own, request_id=name, client=client)
                answer = Answer(
                    stream,
                    body,
                    prompt=tokens,
                    arrival_s=arrival_s,
                    seed=sampling["seed"] if sampling["temperature"] > 0 else None,
                    text=engine.text_stream() if by_tokens else None,
                    timeout_s=self.options.request_timeout_s,
                    ended=self._ended,
                    index=index,
                    number=next(self._numbers),
                )
                self.answers[answer.number] = answer
                self.idle.clear()
                answers.append(answer)
        except BaseException as error:
            for answer in answers:
                await answer.close()
            if isinstance(error, ValueError):
                raise RequestError(str(error), param=str(error).partition(" ")[0]) from error
            raise
        return answers

    async def _submit(
        self,
        body: CompletionBody | ChatBody,
        tokens: tuple[int, ...],
        most: int,
        sampling: Mapping[str, Any],
        **who: str,
    ) -> AsyncStream:
        """A request's stream. who: its `request_id` and its `client`."""
        engine, tenant = self.check_open(), self._tenants[body.model or self.model]
        if isinstance(body, ScoringBody):
            return await engine.submit_scoring(
                tokens,
                num_candidates=max(body.logprobs, body.max_tokens),
                with_next=body.max_tokens > 0,
                tenant=tenant,
                **who,
            )
        return await engine.submit(
            tokens,
            max_new_tokens=most,
            min_new_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            stop_token_ids=body.stop_token_ids,
            tpot_s=body.slo.tpot_ms / 1e3 if body.slo and body.slo.tpot_ms else None,
            tenant=tenant,
            **who,
            **sampling,
        )

    async def scored(self, answer: Answer) -> tuple[ScoredToken, ...]:
        """The scored tokens of an answer that has started. EngineError if it was ended early."""
        assert self._engine is not None, "it has answered"
        tokens = await self._engine.scored(answer.prompt, answer.scores())
        assert isinstance(answer.body, ScoringBody)
        return tokens if answer.body.logprobs else tuple(token._replace(candidates=()) for token in tokens)

    def _most_tokens(self, body: CompletionBody | ChatBody, num_prompt_tokens: int, max_context: int) -> int:
        room = max_context - num_prompt_tokens
        usual = int(self._defaults_of(body).get("max_new_tokens", room))
        most = body.most_tokens or min(room, usual if isinstance(body, ChatBody) else min(_COMPLETION_TOKENS, usual))
        if room < max(1, most):
            raise RequestError(
                f"the maximum context length is {max_context} tokens; the prompt has {num_prompt_tokens}, and "
                f"max_tokens is {max(1, most)}",
                param="prompt" if room < 1 else "max_tokens",
                code="context_length_exceeded",
            )
        return most

    def _defaults_of(self, body: CompletionBody | ChatBody) -> Mapping[str, float]:
        return self._defaults.get(body.model or self.model, {})

    def too_busy(self) -> RequestError:
        """What a request is told that finds no place."""
        self.metrics.refused()
        state = self.state()
        assert state is not None
        wait_s = self.metrics.mean_request_s * max(1, state.num_waiting) / max(1, state.max_running)
        return RequestError(
            f"{state.num_waiting} requests are waiting, which is the limit",
            status=429,
            headers={"retry-after": str(max(1, math.ceil(wait_s)))},
        )

    def _ended(self, answer: Answer) -> None:
        self.answers.pop(answer.number, None)
        if not self.answers:
            self.idle.set()
        self.metrics.ended(answer)
        if answer.stream.generation is not None:
            self.timelines.append(answer.stream.generation.timeline)

    async def drain(self, within_s: float) -> None:
        """Accept nothing more, and wait for the requests under way; cut off those that take too long."""
        if self.phase is not ServerPhase.FAILED:
            self.phase = ServerPhase.DRAINING
        try:
            async with asyncio.timeout(within_s):
                await self.idle.wait()
        except TimeoutError:
            for answer in list(self.answers.values()):
                answer.cut_off("the server is shutting down")
