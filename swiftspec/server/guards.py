"""Guards before every request: name, key, origin, size, time. Plain ASGI, so that streams pass untouched.

A browser sends requests of any page to any server that it can reach. A page of another origin cannot send JSON without
the server's leave, so bodies have to say that they are JSON. A page whose own name leads to this machine (DNS
rebinding) is of the same origin, so without keys the server answers to names only that no page can have.
"""

import asyncio
import hmac
import logging
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from math import inf
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swiftspec.server.errors import RequestError

_OPEN = frozenset({"/", "/health", "/live", "/metrics"})
_MOST_ID_CHARACTERS = 128
MOST_BODY_BYTES = 8 << 20  # of a request
_MOST_HELD_BYTES = 128 << 20  # of the bodies of all requests that are being read
_MOST_FORGOTTEN_BYTES = 128 << 20  # above, the connection is closed at once
_log = logging.getLogger("swiftspec.server")


Check = Callable[[Scope], RequestError | None]
"""Why a request is refused, by all but its body; None if it passes."""


class Guard:
    """Refuses requests to which a check objects, the first one that does.

    It gives every request the id that its client sent as `X-Request-Id`, or one of its own, and sends it back.
    """

    def __init__(self, app: ASGIApp, checks: Sequence[Check]) -> None:
        self._app, self._checks = app, checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        is_usable = 0 < len(given) <= _MOST_ID_CHARACTERS and given.isascii() and given.isprintable()
        request_id = given if is_usable else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        error = next((error for check in self._checks if (error := check(scope)) is not None), None)
        await (self._app if error is None else error.response)(scope, receive, with_id)


def api_keys(keys: Sequence[str]) -> Check:
    """Lets only requests with one of these keys pass, but for health and metrics; a key's number is their `client`."""
    known = [key.encode() for key in keys]

    def check(scope: Scope) -> RequestError | None:
        if scope["path"] in _OPEN:
            return None
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # Every key is compared, each in constant time: the time tells nothing about any of them.
        sent = given.strip().encode("latin-1")  # as which the bytes of a header are read
        matches = [hmac.compare_digest(key, sent) for key in known]
        if scheme.lower() == "bearer" and any(matches):
            scope["state"]["client"] = f"key {matches.index(True)}"
            return None
        return RequestError("the API key is missing or unknown", status=401, headers={"www-authenticate": "Bearer"})

    return check


def known_hosts(names: Iterable[str]) -> Check:
    """Refuses requests under a name of the public DNS, unless it is known, and those of pages of other origins.

    names: under which the server may be asked, beside addresses, names without a dot and this machine's own name.
    """
    known = {socket.gethostname().lower(), *(name.lower() for name in names)}

    def check(scope: Scope) -> RequestError | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _parts_of(f"//{host}").hostname or "."  # a name that nobody has
        if host and not _is_private(name) and name not in known:
            return RequestError(
                f"the host is {host[:100]!r}, by which this server is not known; expected its address, or a name given "
                "with --allowed-host",
                status=403,
            )
        if origin is not None and _parts_of(origin).netloc.lower() != host.lower():
            return RequestError(
                f"the origin is {origin[:100]!r}; expected a page of this server, or a server with API keys", status=403
            )
        return None

    return check


def _is_private(name: str) -> bool:
    """Whether no page of another machine can have this name: an address, or one that is not of the public DNS."""
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def json_bodies(scope: Scope) -> RequestError | None:
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    if scope["method"] == "POST" and kind != "application/json" and not kind.endswith("+json"):
        return RequestError(f"the content type is {kind[:100]!r}; expected 'application/json'", status=415)
    return None


class BodyLimit:
    """Refuses bodies above a size, each and all together; reads one to its end first, so that the client hears why."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._num_held = 0  # bytes of all requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = RequestError(f"the body is larger than {MOST_BODY_BYTES} bytes", status=413)
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > _MOST_FORGOTTEN_BYTES:
            error.headers["connection"] = "close"
            await error.response(scope, receive, send)
            return
        num_received = num_held = 0

        async def counted() -> Message:
            nonlocal num_received, num_held
            message = await receive()
            num_received += len(message.get("body", b""))
            while MOST_BODY_BYTES < num_received < _MOST_FORGOTTEN_BYTES and message.get("more_body"):
                message = await receive()
                num_received += len(message.get("body", b""))
            if num_received > MOST_BODY_BYTES:
                raise error
            self._num_held += num_received - num_held
            num_held = num_received
            if self._num_held > _MOST_HELD_BYTES:
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


def _parts_of(address: str) -> SplitResult:
    """Parts of an address; of one that is none they are empty."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
