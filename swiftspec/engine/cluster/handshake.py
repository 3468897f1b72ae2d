"""Connections between a launcher and its hosts: both ends prove that they have the run's key, then the host says hello.

What is exchanged after that is unpickled by both ends, as Ray does with everything: a key is as good as an account on
the other end's machine, and nothing is encrypted.
"""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from threading import Timer

from swiftspec.version import __version__

__all__ = ["GONE_AFTER_S", "Hello", "Strangers", "admit", "introduce", "watch_peer"]

GONE_AFTER_S = 5  # silence of a machine, by TCP's own probes, before it counts as gone
_PROBE_EVERY_S = 1
_HANDSHAKE_S = 5.0
# An assertion of the standard library fails if a challenge is not one.
Strangers = (AuthenticationError, AssertionError, EOFError, OSError)


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
    with Connection(os.dup(connection.fileno())) as end, _Limit(connection):
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
    """A host's part. One of `Strangers` is raised if the other end is no launcher with this key.

    ValueError if the launcher refuses the host.
    """
    with Connection(os.dup(connection.fileno())) as end, _Limit(connection):
        answer_challenge(end, key)
        deliver_challenge(end, key)
        end.send(hello)
        if why := end.recv():
            raise ValueError(why)


class _Limit(Timer):
    """Context in which a connection is shut down if the handshake takes too long, however often bytes arrive."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(_HANDSHAKE_S, _shut_down, [connection])
        self.daemon = True

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.cancel()


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)
