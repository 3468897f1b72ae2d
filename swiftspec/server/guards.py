"""Guards before every request: size, key, time. Plain ASGI, so that streams pass untouched."""

import asyncio
import hmac
import logging
import uuid
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swiftspec.server.errors import RequestError

__all__ = ["ApiKeys", "BodyLimit", "RequestIds", "SendTimeout", "state_of"]

_OPEN = frozenset({"/", "/health", "/live", "/metrics"})
_MOST_ID_CHARACTERS = 128
_MOST_FORGOTTEN_BYTES = 128 << 20  # above, the connection is closed at once
_log = logging.getLogger("swiftspec.server")


class RequestIds:
    """Gives every request the id that its client sent as `X-Request-Id`, or one of its own, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        is_usable = 0 < len(given) <= _MOST_ID_CHARACTERS and given.isascii() and given.isprintable()
        request_id = given if is_usable else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, with_id)


class ApiKeys:
    """Lets only requests with one of some keys pass, but for health and metrics.

    The state of a request gets the number of its key as its `client`: whose request it is.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # Every key is compared, each in constant time: the time tells nothing about any of them.
        sent = given.strip().encode("latin-1")  # as which the bytes of a header are read
        matches = [hmac.compare_digest(key, sent) for key in self._keys]
        if scheme.lower() == "bearer" and any(matches):
            scope.setdefault("state", {})["client"] = f"key {matches.index(True)}"
            await self._app(scope, receive, send)
            return
        error = RequestError("the API key is missing or unknown", status=401)
        await JSONResponse(error.body, error.status, {"www-authenticate": "Bearer"})(scope, receive, send)


class BodyLimit:
    """Refuses bodies above a size, each and all together. One that is too large is read to its end, and forgotten, so
    that the client hears why.
    """

    def __init__(self, app: ASGIApp, most_bytes: int, *, most_held_bytes: int) -> None:
        self._app = app
        self._most_bytes, self._most_held_bytes = most_bytes, most_held_bytes
        self._num_held = 0  # bytes of all requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = RequestError(f"the body is larger than {self._most_bytes} bytes", status=413)
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > _MOST_FORGOTTEN_BYTES:
            await JSONResponse(error.body, error.status, {"connection": "close"})(scope, receive, send)
            return
        num_received = num_held = 0

        async def counted() -> Message:
            nonlocal num_received, num_held
            message = await receive()
            num_received += len(message.get("body", b""))
            while self._most_bytes < num_received < _MOST_FORGOTTEN_BYTES and message.get("more_body"):
                message = await receive()
                num_received += len(message.get("body", b""))
            if num_received > self._most_bytes:
                raise error
            self._num_held += num_received - num_held
            num_held = num_received
            if self._num_held > self._most_held_bytes:
                raise RequestError("the server is reading too many large bodies", status=503)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._num_held -= num_held


class SendTimeout:
    """Gives up a connection whose client takes nothing for a while: what is sent to it would pile up."""

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        sending_since_s = inf
        is_stuck = False
        timer: asyncio.TimerHandle | None = None

        # One timer for the whole answer: a timer for every part would cost as much as sending it.
        def look() -> None:
            nonlocal is_stuck, timer
            if loop.time() - sending_since_s >= self._timeout_s:
                is_stuck = task.cancel()
            else:
                timer = loop.call_later(self._timeout_s / 4, look)

        async def timed(message: Message) -> None:
            nonlocal sending_since_s
            sending_since_s = loop.time()
            await send(message)
            sending_since_s = inf

        timer = loop.call_later(self._timeout_s / 4, look)
        try:
            await self._app(scope, receive, timed)
        except asyncio.CancelledError:
            if not is_stuck:
                raise
            task.uncancel()
            _log.warning("a client has taken nothing for %g s, and is given up", self._timeout_s)
        finally:
            if timer is not None:
                timer.cancel()


def state_of(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the guards have noted about a request."""
    state: Mapping[str, Any] = scope.get("state", {})
    return state
