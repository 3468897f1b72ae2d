"""The channel between two roles: token ids over ZeroMQ. Messages are length-checked and parsed without pickle.

Beside a message may go a payload, as a second frame, where both ends of a request declare one; see `Payload`.

Nothing received raises, and nothing sent waits: a message that cannot be sent is dropped, an invalid one ends its
exchange (see `sequencing`), and the programs recover from either.
"""

import os
import struct
from collections import deque
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import zmq

from swiftspec.engine.channel.curve import Curve, secure
from swiftspec.engine.channel.sequencing import Exchange, Header
from swiftspec.policies.effects import CatchUp, Message, PeerError, Probe, ProbeReply, Stop, Subtree, Verdict

# Little-endian: request, attempt, sequence number, kind; int32s.
_HEAD = struct.Struct("<IIIB")
_VERDICT, _STOP, _SUBTREE, _PROBE, _HELLO, _TEXT = range(6)
_BARE: dict[int, type[Stop] | type[Probe]] = {_STOP: Stop, _PROBE: Probe}
_MAX_TOKENS = 4096
_MAX_BYTES = _HEAD.size + 4 * (2 * _MAX_TOKENS + 1)
_MAX_QUEUED = 1024  # messages in either direction: more than any policy has in flight
_FIRST_CONTACT_MS = 500  # once in a process's life
_FOUND_AGAIN_MS = 100  # several times _RECONNECT_MS
_YIELDS = 3
_RECONNECT_MS = 10  # the end that binds may start a little later
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 1000, 3000


def encode(message: Message, header: Header) -> bytes:
    body: tuple[int, ...] = ()
    match message:
        case Verdict(tokens):
            kind, body = _VERDICT, tokens
        case Subtree(position, tokens, parents):
            kind, body = _SUBTREE, (position, *tokens, *parents)
        case ProbeReply(num_known):
            kind, body = _HELLO, (num_known,)
        case CatchUp(position, tokens, start):
            kind, body = _TEXT, (position, int(start), *tokens)
        case Stop():
            kind = _STOP
        case Probe():
            kind = _PROBE
    return _HEAD.pack(*header, kind) + struct.pack(f"<{len(body)}i", *body)


def decode(frame: bytes) -> tuple[Message, Header]:
    """The message and its numbers. PeerError for anything that `encode` does not write."""
    count, rest = divmod(len(frame) - _HEAD.size, 4)
    if count < 0 or rest or len(frame) > _MAX_BYTES:
        raise PeerError(f"a message has {len(frame)} bytes, which no kind of message has")
    *numbers, kind = _HEAD.unpack_from(frame)
    body: tuple[int, ...] = struct.unpack_from(f"<{count}i", frame, _HEAD.size)
    message = _message(kind, body)
    if message is None:
        raise PeerError(f"a message of kind {kind} with {count} numbers is invalid")
    return message, Header(*numbers)


def _message(kind: int, body: tuple[int, ...]) -> Message | None:
    if kind == _SUBTREE:
        return _subtree(body)
    if min(body, default=0) < 0:
        return None
    if kind == _VERDICT:
        return Verdict(body)
    if kind == _HELLO and len(body) == 1:
        return ProbeReply(*body)
    if kind == _TEXT and len(body) >= 2 and body[1] <= 1:
        return CatchUp(body[0], body[2:], bool(body[1]))
    return _BARE[kind]() if kind in _BARE and not body else None


def _subtree(body: tuple[int, ...]) -> Subtree | None:
    half = 1 + len(body) // 2
    if len(body) % 2 == 0 or min(body[:half]) < 0:
        return None
    parents = body[half:]
    if not all((parent < 0) == (index == 0) and -1 <= parent < index for index, parent in enumerate(parents)):
        return None
    return Subtree(body[0], body[1:half], parents)


class Payload(NamedTuple):
    """What goes beside one request's messages, as one end sees it; by default nothing.

    outgoing: what goes beside a message; nothing if empty. takes: takes what came beside a message that is to be
    delivered; False if the message is invalid with it.
    """

    outgoing: Callable[[Message], bytes] = lambda _: b""
    takes: Callable[[Message, bytes], bool] = lambda _, payload: not payload


NO_PAYLOAD = Payload()


def beside_chains(chains: Payload, others: Payload) -> Payload:
    """Two payloads: one beside a draft's chains, the other beside all other messages."""

    def of(message: Message) -> Payload:
        return chains if isinstance(message, Subtree) else others

    return Payload(
        outgoing=lambda message: of(message).outgoing(message),
        takes=lambda message, payload: of(message).takes(message, payload),
    )


class Channel(AbstractContextManager["Channel"]):
    """One end: a ZeroMQ DEALER socket; a PAIR would lock a new peer out until everything from a dead one is read.

    Every request has a part of its own of it, a `RequestChannel`.

    address: `ipc://path` or `tcp://host:port`. bind: exactly one end binds.
    leads: exactly one end, the target's, opens exchanges.
    vocab_size: a message with a token outside it is invalid.
    curve: rejects peers without the secret; for addresses that others can reach.
    most_payload_bytes: of the largest payload beside a message.
    serves: requests begin when the peer opens them, in any order; see `knocking`.
    """

    def __init__(
        self,
        address: str,
        *,
        bind: bool,
        leads: bool,
        vocab_size: int,
        curve: Curve | None = None,
        most_payload_bytes: int = 0,
        serves: bool = False,
    ) -> None:
        self._address, self._binds, self._curve = address, bind, curve
        self._most_bytes = max(_MAX_BYTES, most_payload_bytes)  # of a frame
        self._open_socket()
        self._leads = leads
        self._serves = serves
        self._vocab_size = vocab_size
        self._has_met_peer = False
        self._requests: dict[int, RequestChannel] = {}
        self._last_opened = -1
        # The peer may begin a request before this end does.
        self._early: deque[tuple[int, _Heard]] = deque(maxlen=_MAX_QUEUED)

    def _open_socket(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self.socket = _socket(self._context, self._most_bytes)
        if self._curve:
            secure(self.socket, self._curve, server=self._binds)
        try:
            (self.socket.bind if self._binds else self.socket.connect)(self._address)
        except zmq.ZMQError as error:
            self._close_socket()
            why = zmq.strerror(error.errno or 0)
            raise ValueError(f"{self._address}: cannot be {'bound' if self._binds else 'connected'} ({why})") from error

    def _close_socket(self) -> None:
        """Close the socket; returns when the address is free."""
        self.socket.close()
        self._context.term()

    def _open_again_if_lost(self) -> None:
        """While no peer is there, recreate the socket's file if it was removed, by a cleaner of /tmp, say."""
        path = Path(self._address.removeprefix("ipc://"))
        if not self._binds or not self._address.startswith("ipc:") or path.exists():
            return
        self._close_socket()
        with suppress(OSError):
            path.parent.mkdir(mode=0o700)  # if the folder was removed, too
        try:
            self._open_socket()
        except ValueError:  # not now: nobody can connect until the next try
            self._context = zmq.Context(io_threads=1)
            self.socket = _socket(self._context, self._most_bytes)
            return
        self.socket.poll(_FOUND_AGAIN_MS, zmq.POLLOUT)

    def __exit__(self, *_: object) -> None:
        self._close_socket()

    def open(self, request: int, payload: Payload = NO_PAYLOAD) -> "RequestChannel":
        """A request's part. Numbers ascend: messages of a smaller one that is not open are dropped."""
        if not self.socket.poll(0, zmq.POLLOUT):  # no peer
            self._open_again_if_lost()
        self._last_opened = max(request, self._last_opened)
        part = self._requests[request] = RequestChannel(self, request, leads=self._leads, payload=payload)
        early = [heard for number, heard in self._early if number == request]
        self._keep_early(lambda number: number != request if self._serves else number > self._last_opened)
        for heard in early:
            part.hear(heard)
        return part

    @property
    def knocking(self) -> Collection[int]:
        """Requests that the peer has opened, and this end has not."""
        return dict.fromkeys(number for number, _ in self._early)

    def _keep_early(self, is_kept: Callable[[int], bool]) -> None:
        self._early = deque((entry for entry in self._early if is_kept(entry[0])), maxlen=_MAX_QUEUED)

    def close(self, request: int) -> None:
        """End a request's part, if it is open: what still comes of it is dropped."""
        self._requests.pop(request, None)

    def transmit(self, frame: bytes, *, is_probe: bool, payload: bytes = b"") -> None:
        """Send; drop if there is no peer or its queue is full; the very first frame may wait briefly for the peer."""
        if is_probe:  # the peer has been silent
            self._open_again_if_lost()
        if not self._has_met_peer:
            self.socket.poll(_FIRST_CONTACT_MS, zmq.POLLOUT)
            self._has_met_peer = True
        try:
            if payload:
                self.socket.send_multipart((frame, payload), zmq.NOBLOCK)
            else:
                self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return
        # ZeroMQ's own thread shares this role's cores with a main thread that never rests: let it run now. A single
        # yield may go to another thread instead, such as the launcher's.
        for _ in range(_YIELDS):
            os.sched_yield()

    def pump(self) -> None:
        """Give every message that has come to its request's part."""
        os.sched_yield()
        for _ in range(_MAX_QUEUED):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._hear(*frames)

    def _hear(self, frame: bytes, payload: bytes = b"", *others: bytes) -> None:
        try:
            message, header = decode(frame)
        except PeerError:
            self._hear_nonsense(frame)
            return
        tokens = message.tokens if isinstance(message, Subtree | Verdict | CatchUp) else ()
        is_valid = max(tokens, default=0) < self._vocab_size and not others
        heard = (header, message, payload) if is_valid else None
        if (part := self._requests.get(header.request)) is not None:
            part.hear(heard)
        elif self._serves:
            self._hear_knock(header.request, heard)
        elif header.request > self._last_opened:
            self._early.append((header.request, heard))

    def _hear_knock(self, request: int, heard: "_Heard") -> None:
        """Keep what comes of a request from its probe on, and nothing of one that has been stopped."""
        message = heard[1] if heard else None
        if isinstance(message, Stop):
            self._keep_early(lambda number: number != request)
        elif isinstance(message, Probe) or request in self.knocking:
            self._early.append((request, heard))

    def _hear_nonsense(self, frame: bytes) -> None:
        """An invalid message breaks its request's exchange; every one, if it does not even say which is meant."""
        request = _HEAD.unpack_from(frame)[0] if len(frame) >= _HEAD.size else None
        for number, part in self._requests.items():
            if request in (None, number):
                part.hear(None)


class RequestChannel:
    """One request's messages over a channel, to and from the same request at the other end."""

    def __init__(self, channel: Channel, request: int, *, leads: bool, payload: Payload) -> None:
        self._channel = channel
        self._payload = payload
        self._exchange = Exchange(request, leads=leads)
        self._inbox: deque[_Heard] = deque(maxlen=_MAX_QUEUED)

    def send(self, message: Message) -> None:
        """Send without waiting; see `Channel.transmit`."""
        frame = encode(message, self._exchange.header(message))
        payload = self._payload.outgoing(message)
        self._channel.transmit(frame, is_probe=isinstance(message, Probe), payload=payload)

    def poll(self) -> Message | None:
        """The next message of the present exchange, if one is there."""
        message = self.take()
        if message is None:
            self._channel.pump()
            message = self.take()
        return message

    def take(self) -> Message | None:
        """The next message of the present exchange, among those that the channel has read already."""
        while self._inbox:
            heard = self._inbox.popleft()
            if heard is None:
                self._exchange.break_off()
                continue
            header, message, payload = heard
            if self._exchange.admits(header, message):
                if self._payload.takes(message, payload):
                    return message
                self._exchange.break_off()
        return None

    def hear(self, heard: "_Heard") -> None:
        """Keep a message for its program; None for an invalid one."""
        self._inbox.append(heard)


_Heard = tuple[Header, Message, bytes] | None  # and the payload


def _socket(context: zmq.Context[zmq.Socket[bytes]], most_bytes: int) -> zmq.Socket[bytes]:
    """A socket that drops a peer after seconds of silence, so that another may take its place."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
    socket.setsockopt(zmq.SNDHWM, _MAX_QUEUED)
    socket.setsockopt(zmq.RCVHWM, _MAX_QUEUED)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
    return socket
