"""One HTTP request and its answer, of which no more is read, and for no longer, than its limits allow."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    RemoteDisconnected,
)
from io import BufferedReader, RawIOBase
from socket import socket
from typing import Any
from urllib.parse import urlsplit

from swiftspec.files.reading import brief, shown

READ_BYTES = 1 << 16
_CONNECTS_WITHIN_S = 10.0
_URL = re.compile("[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of an answer.

    most_bytes: size of its headers and its body, as they are sent. silence_s: longest time in which nothing comes.
    total_s: longest time from the request to the end of the answer.
    """

    most_bytes: int
    silence_s: float
    total_s: float


class Address:
    """A server's address, with or without `/v1`. ValueError if it is none of HTTP."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")
        except ValueError:
            host = ""
        if not host or parts.scheme not in ("http", "https") or not _URL.fullmatch(url):
            raise ValueError(f"--url is {url}; expected an address such as http://127.0.0.1:8000")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = host, port
        self._path = parts.path.rstrip("/").removesuffix("/v1")

    @contextmanager
    def asked(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], *, bounds: Bounds
    ) -> Iterator[HTTPResponse]:
        """The answer to a request; its body is read inside the context.

        OSError or HTTPException, also while it is read, if there is none or it exceeds its limits; see `why`.
        """
        with closing(self._kind(self._host, self._port, timeout=_CONNECTS_WITHIN_S)) as connection:
            connection.response_class = partial(_BoundedResponse, bounds=bounds)  # type: ignore[assignment]  # it is only called
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(bounds.silence_s)
            connection.request(method, self._path + path, body=content, headers=dict(headers))
            with closing(connection.getresponse()) as answer:
                yield answer


class _BoundedResponse(HTTPResponse):
    def __init__(self, sock: socket, *args: Any, bounds: Bounds, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = BufferedReader(_BoundedBytes(sock, bounds))


class _BoundedBytes(RawIOBase):
    """What a socket receives.

    All that an answer consists of comes through here, so that nothing in it can be endless: interim answers, headers,
    chunks of any length, and bytes that come one by one.
    """

    def __init__(self, sock: socket, bounds: Bounds) -> None:
        self._socket, self._received, self._bounds = sock, sock.makefile("rb", buffering=0), bounds
        self._left_bytes = bounds.most_bytes
        self._until_s = time.monotonic() + bounds.total_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise self._too_late()
        is_last = left_s < self._bounds.silence_s
        if is_last:
            self._socket.settimeout(left_s)
        try:
            num_bytes = self._received.readinto(buffer) or 0
        except TimeoutError:
            raise self._too_late() if is_last else TimeoutError(f"silent for {self._bounds.silence_s:g} s") from None
        self._left_bytes -= num_bytes
        if self._left_bytes < 0:
            # No ValueError: http.client takes one for a wrong length of a chunk.
            raise HTTPException(f"it has more than {self._bounds.most_bytes} bytes")
        return num_bytes

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"not complete after {self._bounds.total_s:g} s")

    def close(self) -> None:
        self._received.close()
        super().close()


def why(error: Exception) -> str:
    """What went wrong with a request, in a few words."""
    match error:
        case RemoteDisconnected():
            return "the connection was closed"
        case BadStatusLine():
            return f"it is no HTTP, and begins with {shown(error.args[0])}"
        case IncompleteRead():
            return "it ended too early"
        case _:
            return brief(error) or type(error).__name__
