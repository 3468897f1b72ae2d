"""Connections between a launcher and its hosts: both ends prove that they have the run's key, then the host says hello.

The launcher's listener keeps one spare connection for each slot. What is exchanged after the handshake is unpickled by
both ends, as Ray does with everything: a key is as good as an account on the other end's machine, and nothing is
encrypted.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from threading import Timer
from typing import NamedTuple

from swiftspec.version import __version__

GONE_AFTER_S = 5  # silence of a machine, by TCP's own probes, before it counts as gone
_PROBE_EVERY_S = 1
_HANDSHAKE_S = 5.0
# An assertion of the standard library fails if a challenge is not one.
Strangers = (AuthenticationError, AssertionError, EOFError, OSError)
_PAUSE_S = 0.1
_MOST_HANDSHAKES = 64  # at a time: strangers cost threads, but not without limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Facts that a host announces about itself.

    slot: number of the process that it keeps. node: its address, for people. machine: the same for hosts of one
    machine, whatever their nodes are called. devices: cores by their numbers on the machine, or GPUs as its processes
    number them. port: a free one, for the channel of a target. version: of this package.
    """

    slot: int
    node: str
    machine: str
    devices: tuple[int, ...]
    port: int
    version: str = __version__


def watch_peer(connection: socket.socket) -> None:
    """Have the kernel end a TCP connection, with an error, if the other machine does not answer for `GONE_AFTER_S`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, GONE_AFTER_S - _PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_AFTER_S)


def admit(connection: socket.socket, key: bytes, *, num_slots: int) -> Hello:
    """The launcher's part. One of `Strangers` is raised if the other end has no key, or is too slow to show it."""
    with Connection(os.dup(connection.fileno())) as end, _limited(connection):
        deliver_challenge(end, key)
        answer_challenge(end, key)
        hello: Hello = end.recv()
        why = ""
        if hello.version != __version__:
            why = f"the version of swiftspec is {hello.version} on {hello.node}; expected {__version__}, the launcher's"
        elif not 0 <= hello.slot < num_slots:
            why = f"slot is {hello.slot}; expected 0 to {num_slots - 1}"
        end.send(why)
    if why:
        raise AuthenticationError(why)
    return hello


def introduce(connection: socket.socket, key: bytes, hello: Hello) -> None:
    """A host's part. One of `Strangers` is raised if there is no launcher, ValueError if it refuses the host."""
    with Connection(os.dup(connection.fileno())) as end, _limited(connection):
        answer_challenge(end, key)
        deliver_challenge(end, key)
        end.send(hello)
        if why := end.recv():
            raise ValueError(why)


@contextmanager
def _limited(connection: socket.socket) -> Iterator[None]:
    """Context in which a connection is shut down if the handshake takes too long, however often bytes arrive."""

    def shut_down() -> None:
        with suppress(OSError):  # it has ended meanwhile
            connection.shutdown(socket.SHUT_RDWR)

    timer = Timer(_HANDSHAKE_S, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Spare(NamedTuple):
    """A host's connection, which is to become a worker's, and what the host said of itself."""

    connection: socket.socket
    address: str
    hello: Hello

    @property
    def is_there(self) -> bool:
        """Whether its host is, as far as is known."""
        try:
            self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # it has closed its end, or speaks, which no host does


class Listener(AbstractContextManager["Listener"]):
    """Listens on one address until it is closed; a context manager.

    The latest host of a slot counts: an earlier one is told to end. key: of the run; connections without it are closed.

    OSError: if the address cannot be listened on.
    """

    def __init__(self, address: str, key: bytes, *, num_slots: int) -> None:
        self._key = key
        self._spares: list[Spare | None] = [None] * num_slots
        self._lock = threading.Lock()
        self._is_closed = False
        self._handshakes = threading.Semaphore(_MOST_HANDSHAKES)
        self._socket = socket.create_server((address, 0), backlog=_MOST_HANDSHAKES)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._thread = threading.Thread(target=self._accept, name="swiftspec-hosts", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and let every host end."""
        with self._lock:
            self._is_closed = True
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing would not
        self._thread.join()
        for slot in range(len(self._spares)):
            self._put(slot, None)

    def look(self, slot: int) -> Spare | None:
        """The slot's spare connection, if there is one; it stays there."""
        with self._lock:
            spare = self._spares[slot]
            return spare if spare is not None and spare.is_there else None

    def take(self, slot: int) -> Spare | None:
        """The slot's spare connection, if there is one; its host brings the next."""
        with self._lock:
            spare, self._spares[slot] = self._spares[slot], None
        if spare is None or spare.is_there:
            return spare
        spare.connection.close()
        return None

    def _put(self, slot: int, spare: Spare | None) -> None:
        with self._lock:
            if self._is_closed and spare is not None:
                spare.connection.close()
                return
            earlier, self._spares[slot] = self._spares[slot], spare
        if earlier is not None:
            earlier.connection.close()

    def _accept(self) -> None:
        with self._socket:
            while True:
                try:
                    connection, (address, *_) = self._socket.accept()
                except ConnectionAbortedError:
                    continue  # the stranger has gone
                except OSError:
                    if self._is_closed:
                        return
                    time.sleep(_PAUSE_S)  # no descriptor is left: until one is
                    continue
                if self._handshakes.acquire(blocking=False):
                    threading.Thread(target=self._shake_hands, args=(connection, address), daemon=True).start()
                else:
                    connection.close()

    def _shake_hands(self, connection: socket.socket, address: str) -> None:
        try:
            watch_peer(connection)
            hello = admit(connection, self._key, num_slots=len(self._spares))
        except Strangers:
            connection.close()
        else:
            self._put(hello.slot, Spare(connection, address, hello))
        finally:
            self._handshakes.release()
