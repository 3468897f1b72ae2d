"""The server's routes, and what stands before them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from swiftspec.server.bodies import ChatBody, DetokenizeBody, TokenizeBody, parse, parse_completion
from swiftspec.server.connections import ConnectionLimits
from swiftspec.server.endpoint import Generations
from swiftspec.server.errors import INTERNAL, RequestError, error_body
from swiftspec.server.guards import ApiKeys, BodyLimit, RequestIds, SendTimeout
from swiftspec.server.live import LiveView
from swiftspec.server.origins import JsonBodies, KnownHosts
from swiftspec.server.serving import Phase, Serving
from swiftspec.timing.timelines import timelines_as_json
from swiftspec.version import __version__

__all__ = ["HttpOptions", "make_app"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Limits of connections.

    Parameters
    ----------
    api_keys : sequence of str
        One of them is needed, unless there are none.
    allowed_hosts : sequence of str
        Names by which a server without keys may be asked, beside those that `KnownHosts` allows.
    most_body_bytes : int
        Longest body of a request.
    most_held_bytes : int
        Bodies of all requests that are being read.
    connections : ConnectionLimits
    send_timeout_s : float
        A client that takes nothing for so long is given up.
    """

    api_keys: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    most_body_bytes: int = 8 << 20
    most_held_bytes: int = 128 << 20
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    send_timeout_s: float = 30.0


def make_app(serving: Serving, options: HttpOptions) -> ASGIApp:
    """The ASGI application."""
    view = _Views(serving)
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
    app: ASGIApp = SendTimeout(routed, options.send_timeout_s)
    app = BodyLimit(app, options.most_body_bytes, most_held_bytes=options.most_held_bytes)
    app = JsonBodies(app)
    app = ApiKeys(app, options.api_keys) if options.api_keys else KnownHosts(app, options.allowed_hosts)
    return RequestIds(app)


class _Views:
    """Answers that need no forward."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._live = LiveView(serving)
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
        if body.messages is not None:
            tokens = await self._serving.tokens_of_chat(body.messages, {})
        else:
            tokens = await self._serving.check_open().tokenize(body.prompt or "")
        return JSONResponse({"count": len(tokens), "max_model_len": self._serving.max_context, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        body = parse(DetokenizeBody, await request.body())
        try:
            return JSONResponse({"prompt": await self._serving.check_open().detokenize(body.tokens)})
        except ValueError as error:
            raise RequestError(str(error).replace("prompt", "tokens", 1), param="tokens") from error

    async def health(self, _: Request) -> Response:
        is_ready = self._serving.phase is Phase.READY
        return Response(status_code=200 if is_ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._serving.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def timelines(self, _: Request) -> Response:
        if not self._serving.keeps_timelines:
            raise RequestError("this server keeps no timelines; expected one with --keep-timelines", status=404)
        return Response(timelines_as_json(self._serving.timelines), media_type="application/json")

    async def live(self, _: Request) -> Response:
        return StreamingResponse(self._live.listen(), media_type="text/event-stream")

    async def page(self, _: Request) -> Response:
        return HTMLResponse(self._page)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse(error.body, error.status, error.headers)


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
