"""The server's routes, and what stands before them."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from importlib.resources import files
from math import inf
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from swiftspec.server.bodies import ChatBody, DetokenizeBody, TokenizeBody, parse, parse_completion
from swiftspec.server.endpoint import Generations, event
from swiftspec.server.errors import INTERNAL, RequestError, error_body
from swiftspec.server.guards import BodyLimit, Guard, SendTimeout, api_keys, json_bodies, known_hosts
from swiftspec.server.serving import ServerPhase, Serving
from swiftspec.timing.timeline import timelines_as_json
from swiftspec.version import __version__

_EVERY_S = 0.5
_MOST_REQUESTS = 64  # that are listed
_MOST_LISTENERS = 32


def make_app(serving: Serving) -> ASGIApp:
    """The ASGI application, for HTTP alone."""
    view, options = _Views(serving), serving.options
    routed = Starlette(
        routes=[
            Route("/v1/completions", Generations(serving, parse_completion), methods=["POST"]),
            Route("/v1/chat/completions", Generations(serving, partial(parse, ChatBody)), methods=["POST"]),
            Route("/v1/models", view.models),
            Route("/tokenize", view.tokenize, methods=["POST"]),
            Route("/detokenize", view.detokenize, methods=["POST"]),
            Route("/health", view.health),
            Route("/metrics", view.metrics),
            Route("/version", view.version),
            Route("/timelines", view.timelines),
            Route("/live", view.live),
            Route("/", view.page),
        ],
        exception_handlers={
            RequestError: _refuse,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            Exception: _internal_error,
        },
    )
    routed.router.redirect_slashes = False  # a redirect would go wherever the Host header says
    app = BodyLimit(SendTimeout(routed, options.send_timeout_s))
    return Guard(
        app, [api_keys(options.api_keys) if options.api_keys else known_hosts(options.allowed_hosts), json_bodies]
    )


class _Views:
    """Answers that need no forward."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._num_listeners = 0
        self._said, self._said_s = b"", -inf  # the state as an event, made once for all listeners of some moments
        self._started_s = int(time.time())
        self._page = files("swiftspec.server").joinpath("static/index.html").read_text(encoding="utf-8")

    async def models(self, _: Request) -> Response:
        served = [
            {
                "id": name,
                "object": "model",
                "created": self._started_s,
                "owned_by": "swiftspec",
                "max_model_len": self._serving.max_context,
                "parent": None if name == self._serving.model else self._serving.model,
            }
            for name in self._serving.models
        ]
        return JSONResponse({"object": "list", "data": served})

    async def tokenize(self, request: Request) -> Response:
        body = parse(TokenizeBody, await request.body())
        self._serving.check_model(body.model)
        if body.messages is not None:
            tokens = await self._serving.tokens_of_chat(body, body.messages)
        else:
            special = body.add_special_tokens is not False
            tokens = await self._serving.check_open().tokenize(body.prompt or "", special_tokens=special)
        return JSONResponse({"count": len(tokens), "max_model_len": self._serving.max_context, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        body = parse(DetokenizeBody, await request.body())
        try:
            return JSONResponse({"prompt": await self._serving.check_open().detokenize(body.tokens)})
        except ValueError as error:
            raise RequestError(str(error).replace("prompt", "tokens", 1), param="tokens") from error

    async def health(self, _: Request) -> Response:
        is_ready = self._serving.phase is ServerPhase.READY
        return Response(status_code=200 if is_ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._serving.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def timelines(self, _: Request) -> Response:
        if not self._serving.timelines.maxlen:
            raise RequestError("this server keeps no timelines; expected one with --set keep_timelines=N", status=404)
        return Response(timelines_as_json(self._serving.timelines), media_type="application/json")

    async def live(self, _: Request) -> Response:
        """The present state, twice a second, until the client goes. RequestError if there are too many listeners."""
        if self._num_listeners >= _MOST_LISTENERS:
            raise RequestError(f"{_MOST_LISTENERS} listeners are there, which is the limit", status=503)
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        self._num_listeners += 1
        try:
            while True:
                if (now_s := time.perf_counter()) >= self._said_s + _EVERY_S / 2:
                    self._said, self._said_s = event(_state(self._serving)), now_s
                yield self._said
                await asyncio.sleep(_EVERY_S)
        finally:
            self._num_listeners -= 1

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self._page)


def _state(serving: Serving) -> dict[str, Any]:
    """What a server does at this moment: numbers only, nothing of any text."""
    now_s = time.perf_counter()
    engine, answers = serving.state(), list(serving.answers.values())
    return {
        "model": serving.model,
        "phase": serving.phase,
        "draft": engine.draft if engine else None,
        "num_running": engine.num_running if engine else 0,
        "num_waiting": engine.num_waiting if engine else 0,
        "max_running": engine.max_running if engine else 0,
        "cache_usage": engine.cache_usage if engine else 0.0,
        "num_finished": serving.metrics.num_finished,
        "num_tokens": serving.metrics.num_tokens + sum(answer.usage.completion_tokens for answer in answers),
        "tokens_per_round": serving.metrics.tokens_per_round,
        "requests": [
            {
                "number": answer.number,
                "prompt_tokens": answer.usage.prompt_tokens,
                "tokens": answer.usage.completion_tokens,
                "rounds": len(answer.commits_s),
                "age_s": round(now_s - answer.arrival_s, 2),
            }
            for answer in sorted(answers, key=lambda each: not each.commits_s)[:_MOST_REQUESTS]
        ],
    }


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.response


async def _http_error(request: Request, error: Exception) -> Response:
    """Paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(error_body(sentence, status=error.status_code), error.status_code, error.headers)


async def _gone(_: Request, __: Exception) -> Response:
    """The client left before it had sent all of its body; nobody reads this."""
    return Response(status_code=400)


async def _internal_error(_: Request, __: Exception) -> Response:
    return JSONResponse(error_body(INTERNAL, status=500), 500)
