"""Connections of the server: how many there may be, and how long they may take to say what they want.

uvicorn closes a connection that stays idle after an answer. It waits without limit for a request's head and body, takes
heads of any length, and accepts connections for as long as the system has descriptors. Those limits are here. A
connection whose request is being answered is never closed for the sake of another one.
"""

import asyncio
import json
import os
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import ClassVar, NamedTuple, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from swiftspec.server.errors import error_body

# asyncio accepts so many in one turn of its loop. One that gives way frees its descriptor four turns later.
ACCEPTED_AT_ONCE = 4
_KEPT_DESCRIPTORS = 4 * ACCEPTED_AT_ONCE + 16  # the rest is for a draft that is restarted
_MOST_HEAD_BYTES = 64 << 10


def _answer(status: str, sentence: str, code: str) -> bytes:
    """An answer before there is a request."""
    body = json.dumps(error_body(sentence, status=int(status[:3]), code=code))
    head = ("content-type: application/json", f"content-length: {len(body)}", "retry-after: 1", "connection: close")
    return "\r\n".join((f"HTTP/1.1 {status}", *head, "", body)).encode()


_FULL = _answer("503 Service Unavailable", "the server has too many connections", "too_many_connections")
_TOO_LONG = _answer("431 Request Header Fields Too Large", "the head is longer than 64 KiB", "head_too_large")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of connections.

    most: connections at once; fewer where there are fewer descriptors. A quarter of them is for others than whoever has
    most. head_s: longest time from a connection's beginning, or its last answer, to the end of a request's head.
    body_s: longest time from there to the end of the request's body.
    """

    most: int = 2048
    head_s: float = 10.0
    body_s: float = 60.0


class Stage(IntEnum):
    """What a connection waits for."""

    HEAD = 0  # the client, which has not said what it wants
    BODY = 1  # the client, which has not said all of it
    ANSWER = 2  # the server


class Connection(Protocol):
    """A connection as its limits see it."""

    @property
    def peer(self) -> str:
        """The client's address."""

    @property
    def request(self) -> tuple[int, Stage]:
        """Number of its present request, and what that waits for."""

    def refuse(self) -> None:
        """Say that there is no room, and close it."""

    def abort(self) -> None:
        """Close it at once."""


class _Wait(NamedTuple):
    number: int
    stage: Stage
    since_s: float


class Connections:
    """The connections of a server. free_descriptors: how many more files and sockets this process may open."""

    def __init__(
        self, limits: ConnectionLimits, *, clock: Callable[[], float], free_descriptors: Callable[[], int]
    ) -> None:
        self._limits, self._clock, self._free_descriptors = limits, clock, free_descriptors
        self._waits: dict[Connection, _Wait] = {}
        self._counts: Counter[str] = Counter()  # by the client's address
        self._most = self._room()

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, connection: Connection) -> None:
        """Note a new connection. If it is one too many, one that waits for its client gives way, or it is refused."""
        self._waits[connection] = _Wait(*connection.request, self._clock())
        self._counts[connection.peer] += 1
        is_full = len(self) > self._most
        if is_full or self._counts[connection.peer] > self._most - self._most // 4:
            ((busiest, _),) = self._counts.most_common(1)
            if not self._make_way(busiest if is_full else connection.peer, but=connection):
                self.discard(connection)
                connection.refuse()

    def _make_way(self, peer: str, *, but: Connection | None = None) -> bool:
        """Close whom this address has kept waiting longest, for a head rather than a body; whether there was one."""
        self._look()
        idle = {
            each: (wait.stage, wait.since_s)
            for each, wait in self._waits.items()
            if each.peer == peer and wait.stage is not Stage.ANSWER and each is not but
        }
        if not idle:
            return False
        longest = min(idle, key=idle.__getitem__)
        self.discard(longest)
        longest.abort()
        return True

    def discard(self, connection: Connection) -> None:
        """Forget a connection that has ended; nothing happens if it is forgotten already."""
        if self._waits.pop(connection, None) is not None:
            self._counts[connection.peer] -= 1
            if not self._counts[connection.peer]:
                del self._counts[connection.peer]

    def sweep(self) -> None:
        """Close the connections whose clients have taken too long, and some if descriptors have become scarce."""
        self._look()
        limits, now_s = self._limits, self._clock()
        longest_s = {Stage.HEAD: limits.head_s, Stage.BODY: limits.body_s}
        for connection, wait in list(self._waits.items()):
            if now_s - wait.since_s > longest_s.get(wait.stage, inf):
                self.discard(connection)
                connection.abort()
        self._most = self._room()
        while len(self) > self._most and self._make_way(self._counts.most_common(1)[0][0]):
            pass

    def _room(self) -> int:
        return max(1, min(self._limits.most, len(self) + self._free_descriptors() - _KEPT_DESCRIPTORS))

    def _look(self) -> None:
        now_s = self._clock()
        for connection, wait in self._waits.items():
            if (request := connection.request) != wait[:2]:
                self._waits[connection] = _Wait(*request, now_s)


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol of HTTP for connections within limits.

    uvicorn's other one bounds heads by itself. But it is in Python, and takes 20 us more for each chunk of a stream, on
    cores that the roles need; and a body with an invalid chunk makes it log a traceback.
    """

    held: ClassVar[Connections]
    num_requests = num_head_bytes = 0
    _last_cycle: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # asyncio calls it with a stream's transport only
        super().connection_made(transport)
        self.held.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.held.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.num_head_bytes += len(data)
        super().data_received(data)
        if self.num_head_bytes > _MOST_HEAD_BYTES:
            self._refuse(_TOO_LONG)

    def on_body(self, body: bytes) -> None:
        self.num_head_bytes = 0  # lines after the body would count again
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.num_head_bytes = 0
        super().on_message_complete()

    @property
    def peer(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def request(self) -> tuple[int, Stage]:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not self._last_cycle:
            self._last_cycle = cycle
            self.num_requests += 1
        if cycle is None or cycle.response_complete:
            return self.num_requests, Stage.HEAD
        return self.num_requests, Stage.BODY if cycle.more_body else Stage.ANSWER

    def refuse(self) -> None:
        self._refuse(_FULL)

    def _refuse(self, answer: bytes) -> None:
        if self.request[1] is Stage.HEAD:
            self.transport.write(answer)
            self.transport.close()
        else:  # an answer may have begun
            self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()


def bounded_protocol(connections: Connections) -> type[asyncio.Protocol]:
    class _Protocol(_BoundedProtocol):
        held = connections

    return _Protocol


def free_descriptors() -> int:
    """How many more files and sockets this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))


def raise_descriptor_limit() -> None:
    """Let this process open as many files and sockets as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
