"""Completions and chat completions: from a request's body to its answer, whole or streamed."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from swiftspec.engine.scoring import ScoredToken
from swiftspec.errors import EngineBusyError, EngineError
from swiftspec.server.answer import Answer, Piece, Usage, merged
from swiftspec.server.bodies import ChatBody, CompletionBody, ScoringBody
from swiftspec.server.errors import INTERNAL, RequestError, error_body
from swiftspec.server.serving import Serving

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects a stream before it passes it on
]
DONE = b"data: [DONE]\n\n"
_MARK = "\0 text \0"  # in no name of a model
_log = logging.getLogger("swiftspec.server")

Result = TypeVar("Result")


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + _compact(data).encode() + b"\n\n"


def _compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _said(token: ScoredToken | tuple[str, float]) -> dict[str, Any]:
    text, log_prob = (token.text, token.log_prob) if isinstance(token, ScoredToken) else token
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def _likeliest(token: ScoredToken) -> dict[str, float | None]:
    """Log-probs of a token's candidates and of itself, by text: of several with one text that of the likeliest."""
    found: dict[str, float | None] = {}
    for text, log_prob in (*token.candidates, (token.text, token.log_prob)):
        found.setdefault(text, log_prob)
    return found


def _log_probs(tokens: Sequence[ScoredToken], *, offset: int, is_chat: bool) -> dict[str, Any]:
    """Log-probs of tokens, of whose text the first begins at an offset."""
    if is_chat:
        return {"content": [{**_said(each), "top_logprobs": [*map(_said, each.candidates)]} for each in tokens]}
    likeliest = [_likeliest(token) if token.candidates else None for token in tokens]
    texts = [token.text for token in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": likeliest if any(likeliest) else None,
        "text_offset": [*accumulate(map(len, texts[:-1]), initial=offset)],
    }


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to one request, whose parts have one id. seed: told with its end; None if it is greedy."""

    request_id: str
    model: str
    is_chat: bool
    seed: int | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Answer], pieces: Sequence[Piece]) -> dict[str, Any]:
        """The answer in one piece; of each choice what it said."""
        told = []
        for choice, piece in zip(choices, pieces, strict=True):
            said = {"message": {"role": "assistant", "content": piece.text}} if self.is_chat else {"text": piece.text}
            told.append(self._choice(choice, said, piece))
        return self._wrapped(told, "") | self._prompt(choices[0]) | {"usage": Usage.of(choices).as_json()}

    def scored(self, tokens: Sequence[ScoredToken], *, usage: Usage) -> dict[str, Any]:
        """The prompt as an answer, with the log-probs of its tokens; the first one follows nothing, and has none."""
        text = "".join(token.text for token in tokens)
        choice = {"index": 0, "text": text, "logprobs": _log_probs(tokens, offset=0, is_chat=False)}
        return self._wrapped([choice | {"finish_reason": "length"}], "") | {"usage": usage.as_json()}

    def opening(self, choices: Sequence[Answer], usage: Usage | None) -> bytes:
        """What a stream begins with: of a chat, whose turn it is."""
        if not self.is_chat:
            return b""
        said = {"logprobs": None, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return b"".join(self._event([{"index": choice.index, **said}], usage) for choice in choices)

    def piece(self, choice: Answer, piece: Piece, usage: Usage | None) -> bytes:
        """A part of a stream, with the reason if it is the last. usage: if the client wants it with every part."""
        is_plain = piece.finish is None and usage is None and not choice.index
        if is_plain and not (piece.scored or choice.body.return_token_ids):
            before, after = self._around
            return before + _compact(piece.text).encode() + after
        said: dict[str, Any] = {"text": piece.text}
        if self.is_chat:
            said = {"delta": {"content": piece.text} if piece.text or piece.finish is None else {}}
        prompt = self._prompt(choice) if piece.is_first else {}
        return self._event([self._choice(choice, said, piece)], usage, is_last=piece.finish is not None, **prompt)

    @cached_property
    def _around(self) -> tuple[bytes, bytes]:
        """What stands before and after the text of most parts, of which there may be thousands a second."""
        said = {"delta": {"content": _MARK}} if self.is_chat else {"text": _MARK}
        chunk = self._event([{"index": 0, "logprobs": None, **said, "finish_reason": None}], None)
        before, _, after = chunk.partition(_compact(_MARK).encode())
        return before, after

    def closing(self, usage: Usage) -> bytes:
        """The last part of a stream whose client wants to know the usage."""
        return self._event([], usage)

    def _choice(self, choice: Answer, said: Mapping[str, Any], piece: Piece) -> dict[str, Any]:
        scored = _log_probs(piece.scored, offset=piece.offset, is_chat=self.is_chat) if piece.scored else None
        told = {"index": choice.index, "logprobs": scored, **said, "finish_reason": piece.finish}
        if piece.finish == "stop":
            told["stop_reason"] = choice.stop_reason
        if choice.body.return_token_ids:
            told["token_ids"] = piece.token_ids
            if piece.is_first and not self.is_chat:
                told["prompt_token_ids"] = choice.prompt
        return told

    def _prompt(self, choice: Answer) -> dict[str, Any]:
        """Ids of a chat's prompt, which vLLM tells beside the choices."""
        return {"prompt_token_ids": choice.prompt} if self.is_chat and choice.body.return_token_ids else {}

    def _event(
        self, choices: Sequence[Mapping[str, Any]], usage: Usage | None, *, is_last: bool = False, **more: Any
    ) -> bytes:
        told = {} if usage is None else {"usage": usage.as_json()}
        return event(self._wrapped(choices, ".chunk", is_last=is_last) | more | told)

    def _wrapped(self, choices: Sequence[Mapping[str, Any]], part: str, *, is_last: bool = True) -> dict[str, Any]:
        prefix, kind = ("chatcmpl", f"chat.completion{part}") if self.is_chat else ("cmpl", "text_completion")
        head = {"id": f"{prefix}-{self.request_id}", "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": choices} | ({"seed": self.seed} if is_last and self.seed is not None else {})


class ClientGoneError(Exception):
    """The client has closed its connection."""


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The work's result, once the body was read; ClientGoneError, with the work cancelled, if the client goes first."""
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, listening):
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await working


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Generations:
    """ASGI endpoint of a kind of generation. parse: makes a body of its bytes. RequestError if it is none."""

    def __init__(self, serving: Serving, parse: Callable[[bytes], ChatBody | CompletionBody]) -> None:
        self._serving = serving
        self._parse = parse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival_s = time.perf_counter()
        try:
            self._serving.check_open()
            content = await Request(scope, receive).body()
            await unless_gone(receive, self._answer(scope, content, send, arrival_s))
        except RequestError as error:
            await error.response(scope, receive, send)
        except (ClientGoneError, ClientDisconnect):
            _log.debug("the client of %s has gone", scope["state"]["request_id"])

    async def _answer(self, scope: Scope, content: bytes, send: Send, arrival_s: float) -> None:
        body, state = self._parse(content), scope["state"]
        answers = await self._serving.begin(
            body, request_id=state["request_id"], client=state.get("client") or body.user, arrival_s=arrival_s
        )
        reply = Reply(
            request_id=state["request_id"],
            model=body.model or self._serving.model,
            is_chat=isinstance(body, ChatBody),
            seed=answers[0].seed,
        )
        try:
            try:
                for answer in answers:
                    await answer.start()
            except ValueError as error:  # found when it was admitted
                raise RequestError(str(error), param="prompt") from error
            if body.stream:
                await _stream(answers, reply, send)
            else:
                await self._whole(answers, reply, send)
        except EngineBusyError as error:
            raise self._serving.too_busy() from error
        except (EngineError, TimeoutError) as error:
            raise RequestError(str(error), status=500, code="engine_error") from error
        finally:
            await asyncio.gather(*(answer.close() for answer in answers))

    async def _whole(self, answers: Sequence[Answer], reply: Reply, send: Send) -> None:
        if isinstance(answers[0].body, ScoringBody):
            content = JSONResponse(reply.scored(await self._serving.scored(answers[0]), usage=answers[0].usage))
        else:
            pieces: list[list[Piece]] = [[] for _ in answers]
            async for answer, piece in merged(answers):
                pieces[answer.index].append(piece)
            content = JSONResponse(reply.whole(answers, [reduce(Piece.joined, said) for said in pieces]))
        await send({"type": "http.response.start", "status": 200, "headers": content.raw_headers})
        await send({"type": "http.response.body", "body": content.body})


async def _stream(answers: Sequence[Answer], reply: Reply, send: Send) -> None:
    """One event for every commit; those that have come while the client was slow are sent together."""
    options = answers[0].body.stream_options

    async def give(content: bytes, *, more: bool = True) -> None:
        if content or not more:
            await send({"type": "http.response.body", "body": content, "more_body": more})

    def usage() -> Usage | None:
        return Usage.of(answers) if options.continuous_usage_stats else None

    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
    await give(reply.opening(answers, usage()))
    ready: list[bytes] = []
    try:
        async for answer, piece in merged(answers):
            ready.append(reply.piece(answer, piece, usage()))
            if not answer.stream.has_more_now:
                await give(b"".join(ready))
                ready.clear()
    except (EngineError, TimeoutError) as error:
        ready.append(event(error_body(str(error), status=500)))
    except Exception:  # the answer has begun, so nobody else can tell the client
        await give(b"".join([*ready, event(error_body(INTERNAL, status=500)), DONE]), more=False)
        raise
    else:
        if options.include_usage:
            ready.append(reply.closing(Usage.of(answers)))
    await give(b"".join([*ready, DONE]), more=False)
