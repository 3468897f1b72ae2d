"""Guards against foreign web pages: a browser sends requests of any page to any server that it can reach.

A page of another origin cannot send JSON without the server's leave, so bodies have to say that they are JSON. A page
whose own name leads to this machine (DNS rebinding) is of the same origin, so without keys the server answers to names
only that no page can have.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from swiftspec.server.errors import RequestError

__all__ = ["JsonBodies", "KnownHosts"]


class KnownHosts:
    """Refuses requests under a name of the public DNS, unless it is known, and those of pages of other origins.

    Parameters
    ----------
    known : iterable of str
        Names under which the server may be asked, beside addresses, names without a dot and this machine's own name.
    """

    def __init__(self, app: ASGIApp, known: Iterable[str]) -> None:
        self._app = app
        self._known = {socket.gethostname().lower(), *(name.lower() for name in known)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refusal(Headers(scope=scope))) is not None:
            await JSONResponse(error.body, error.status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> RequestError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host and not self._is_known(_name_of(f"//{host}")):
            return RequestError(
                f"the host is {host[:100]!r}, by which this server is not known; expected its address, or a name given "
                "with --allowed-host",
                status=403,
            )
        if origin is not None and _netloc_of(origin) != host.lower():
            return RequestError(
                f"the origin is {origin[:100]!r}; expected a page of this server, or a server with API keys", status=403
            )
        return None

    def _is_known(self, name: str) -> bool:
        if "." not in name or name.endswith(".localhost") or name in self._known:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


class JsonBodies:
    """Refuses bodies that do not say that they are JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower() if _posts(scope) else ""
        if _posts(scope) and kind != "application/json" and not kind.endswith("+json"):
            error = RequestError(f"the content type is {kind[:100]!r}; expected 'application/json'", status=415)
            await JSONResponse(error.body, error.status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _posts(scope: Scope) -> bool:
    is_post: bool = scope["type"] == "http" and scope["method"] == "POST"
    return is_post


def _name_of(address: str) -> str:
    """Host name of an address; of one that is none a name that nobody has."""
    try:
        return urlsplit(address).hostname or "."
    except ValueError:
        return "."


def _netloc_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
