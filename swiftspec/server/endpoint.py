"""Completions and chat completions: from a request's body to its answer, whole or streamed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import reduce
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from swiftspec.errors import EngineBusyError, EngineError
from swiftspec.server.answer import Answer, Piece, Usage, merged
from swiftspec.server.bodies import ChatBody, CompletionBody, ScoringBody
from swiftspec.server.errors import INTERNAL, RequestError, error_body
from swiftspec.server.replies import DONE, Reply, event
from swiftspec.server.serving import Serving

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects a stream before it passes it on
]
_log = logging.getLogger("swiftspec.server")

Result = TypeVar("Result")


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
            for answer in answers:
                await self._start(answer)
            if body.stream:
                await _stream(answers, reply, send)
            else:
                await self._whole(answers, reply, send)
        finally:
            await asyncio.gather(*(answer.close() for answer in answers))

    async def _start(self, answer: Answer) -> None:
        try:
            await answer.start()
        except EngineBusyError as error:
            raise self._serving.too_busy() from error
        except ValueError as error:  # found when it was admitted
            raise RequestError(str(error), param="prompt") from error
        except (EngineError, TimeoutError) as error:
            raise _failure(error) from error

    async def _whole(self, answers: Sequence[Answer], reply: Reply, send: Send) -> None:
        try:
            if isinstance(answers[0].body, ScoringBody):
                content = JSONResponse(reply.scored(await self._serving.scored(answers[0]), usage=answers[0].usage))
            else:
                pieces: list[list[Piece]] = [[] for _ in answers]
                async for answer, piece in merged(answers):
                    pieces[answer.index].append(piece)
                content = JSONResponse(reply.whole(answers, [reduce(Piece.joined, said) for said in pieces]))
        except (EngineError, TimeoutError) as error:
            raise _failure(error) from error
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


def _failure(error: Exception) -> RequestError:
    return RequestError(str(error), status=500, code="engine_error")
