"""The channel between two roles: token ids only, over ZeroMQ. Messages are length-checked and parsed without pickle."""

import os
import struct
from collections.abc import Callable
from types import TracebackType

import zmq

from swiftspec.policies.effects import Message, PeerError, Stop, Subtree, Verdict

__all__ = ["Channel", "decode", "encode"]

# Little-endian: request number, kind, int32s. By the number both ends drop what an interrupted request left behind.
_HEAD = struct.Struct("<IB")
_VERDICT, _STOP, _SUBTREE = range(3)
_MAX_TOKENS = 4096
_IDLE_POLL_MS = 50


def encode(message: Message, request: int) -> bytes:
    """The bytes on the wire."""
    if isinstance(message, Subtree):
        body: tuple[int, ...] = (message.position, *message.tokens, *message.parents)
        kind = _SUBTREE
    elif isinstance(message, Verdict):
        body, kind = message.tokens, _VERDICT
    else:
        body, kind = (), _STOP
    return _HEAD.pack(request, kind) + struct.pack(f"<{len(body)}i", *body)


def decode(frame: bytes) -> tuple[Message, int]:
    """The message and its request number. PeerError for anything that `encode` does not write."""
    count, rest = divmod(len(frame) - _HEAD.size, 4)
    if count < 0 or rest or count > 2 * _MAX_TOKENS + 1:
        raise PeerError(f"a message has {len(frame)} bytes; not a length that occurs")
    request, kind = _HEAD.unpack_from(frame)
    body: tuple[int, ...] = struct.unpack_from(f"<{count}i", frame, _HEAD.size)
    if kind == _STOP and not body:
        return Stop(), request
    if kind == _VERDICT and min(body, default=0) >= 0:
        return Verdict(body), request
    if kind == _SUBTREE and count % 2 and min(body[: 1 + count // 2]) >= 0:
        subtree = Subtree(body[0], body[1 : 1 + count // 2], body[1 + count // 2 :])
        if all((parent < 0) == (i == 0) and parent < i for i, parent in enumerate(subtree.parents)):
            return subtree, request
    raise PeerError(f"a message of kind {kind} with {count} numbers makes no sense")


class Channel:
    """One end of a ZeroMQ PAIR socket.

    Parameters
    ----------
    address : str
        `ipc://path` or `tcp://host:port`.
    bind : bool
        Exactly one end binds.
    interrupted : callable
        Asked now and then while waiting for the peer; when true, the wait ends with InterruptedError.
    """

    def __init__(self, address: str, *, bind: bool, interrupted: Callable[[], bool]) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _HEAD.size + 4 * (2 * _MAX_TOKENS + 1))
        (self._socket.bind if bind else self._socket.connect)(address)
        self._interrupted = interrupted
        self.request = 0

    def __enter__(self) -> "Channel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def send(self, message: Message) -> None:
        """Blocks only while no peer is there. InterruptedError when told to stop meanwhile."""
        frame = encode(message, self.request)
        while True:
            try:
                self._socket.send(frame, zmq.NOBLOCK)
                break
            except zmq.Again:
                self._wait_for(zmq.POLLOUT)
        # ZeroMQ's own thread shares this role's cores with a main thread that never rests: let it run, now.
        os.sched_yield()

    def poll(self) -> Message | None:
        """The next message of this request, if it is there."""
        os.sched_yield()
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            message, request = decode(frame)
            if request == self.request:
                return message

    def receive(self) -> Message:
        """Wait for the next message of this request. InterruptedError when told to stop meanwhile."""
        while True:
            message = self.poll()
            if message is not None:
                return message
            self._wait_for(zmq.POLLIN)

    def _wait_for(self, event: int) -> None:
        if not self._socket.poll(_IDLE_POLL_MS, event) and self._interrupted():
            raise InterruptedError("told to stop while waiting for the peer")
