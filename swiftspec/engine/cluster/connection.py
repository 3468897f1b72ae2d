"""The connection between node 0 and another node: one peer, one connection, and frames of `wire` in order.

A link lives as long as its connection. ZeroMQ's heartbeats detect that a peer has gone, is frozen or out of reach, even
while nobody polls here. Such a peer is not admitted again.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from types import TracebackType

import zmq
from zmq.utils.monitor import recv_monitor_message

from swiftspec.engine.channel.curve import FRAMING_BYTES, Curve, secure
from swiftspec.engine.cluster.wire import MAX_BYTES, Frame, Join, decode, encode

__all__ = ["LOOK_EVERY_S", "SILENCE_S", "Link"]

SILENCE_S = 5.0  # of a peer, before it counts as gone
LOOK_EVERY_S = 0.25  # `Silence`, which detects a frozen fork server, counts at most this much between two looks
_BEAT_S = 1.0
_FAREWELL_S = 1.0  # for messages still being sent
_NEVER_MS = 2**30  # -1 would also mean never, but drops received frames when the connection ends
_MAX_QUEUED = 100_000  # frames
_MAX_EVENTS = 10_000  # read in one look; ZeroMQ keeps 2,000 until then
_OPENED = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED


class Link:
    """One end of a ZeroMQ PAIR socket; node 0's binds.

    Parameters
    ----------
    address : str
        `tcp://host:port`; port 0 is any free one, see `address`.
    bind : bool
        Exactly one end binds.
    curve : Curve
        Keeps strangers out.
    """

    def __init__(self, address: str, *, bind: bool, curve: Curve) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._bound = bind
        self._open: set[int] = set()  # file descriptors of connections, including those of strangers
        self._peer: int | None = None  # the peer's descriptor
        self._has_gone = False  # the peer; a stranger may have its descriptor by now
        self._was_refused = False
        self._set_options(curve)
        self._monitor = self._socket.get_monitor_socket(_OPENED | zmq.EVENT_DISCONNECTED)
        self._events = {self._socket: zmq.POLLIN, self._monitor: zmq.POLLIN}
        try:
            (self._socket.bind if bind else self._socket.connect)(address)
        except zmq.ZMQError as error:
            self.close()
            why = zmq.strerror(error.errno or 0)
            raise ValueError(f"{address}: cannot be {'bound' if bind else 'connected'} ({why})") from error
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _set_options(self, curve: Curve) -> None:
        options = {
            zmq.LINGER: round(1000 * _FAREWELL_S),
            zmq.MAXMSGSIZE: MAX_BYTES + FRAMING_BYTES,
            zmq.SNDHWM: _MAX_QUEUED,
            zmq.RCVHWM: _MAX_QUEUED,
            zmq.HEARTBEAT_IVL: round(1000 * _BEAT_S),
            zmq.HEARTBEAT_TIMEOUT: round(1000 * (SILENCE_S - _BEAT_S)),
            zmq.HANDSHAKE_IVL: round(1000 * SILENCE_S),
            zmq.RECONNECT_IVL: _NEVER_MS,
        }
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        secure(self._socket, curve, server=self._bound)

    def __enter__(self) -> "Link":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def await_peer(self, within_s: float) -> None:
        """Wait for the connection. ValueError if there is none in time, or if the end that bound refuses this one."""
        deadline_s = time.monotonic() + within_s
        if not self._bound:
            self._put(Frame(0, Join()))
        while self._peer is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ValueError(f"{self.address}: no peer with the secret connected within {within_s:g} s")
            self.wait((), left_s)
            self._take_events()
            if self._was_refused:
                raise ValueError(f"{self.address}: the connection was refused; expected the same secret on both nodes")
            self._take_peer()
        if self._bound:
            self._put(Frame(0, Join()))

    def _take_peer(self) -> None:
        """Take the sender of the first frame as the peer: only holders of the secret can send any."""
        with suppress(zmq.Again):
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            decode(frame.bytes)
            self._take_events()  # those of strangers who had this descriptor before
            self._peer = _connection(frame)

    @property
    def is_up(self) -> bool:
        """Whether the peer is there. Once false it stays false, and everything the peer sent has been received."""
        if not self._socket.closed:
            self._take_events()
        return self._is_connected

    @property
    def _is_connected(self) -> bool:
        """As `is_up`, at the last look."""
        return not self._has_gone and self._peer in self._open

    def send(self, frame: Frame) -> None:
        """Queue a frame; does nothing if the peer has gone. ValueError if it is too long."""
        if self._is_connected:
            self._put(frame)

    def _put(self, frame: Frame) -> None:
        try:
            self._socket.send(encode(frame), zmq.NOBLOCK)
        except zmq.Again:  # the peer has taken nothing for very long, or is just going
            self._has_gone = True

    def frames(self) -> Iterator[Frame]:
        """Received frames. ValueError for an invalid one."""
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if _connection(frame) == self._peer:
                yield decode(frame.bytes)

    def wait(self, filenos: Collection[int], timeout_s: float) -> None:
        """Wait until something arrives here or at one of these files, or the timeout is over."""
        poller = zmq.Poller()
        for source, events in [*self._events.items(), *((fileno, zmq.POLLIN) for fileno in filenos)]:
            poller.register(source, events)
        poller.poll(max(1, round(1000 * timeout_s)))

    def close(self) -> None:
        """Close, once everything sent has left or a second has passed."""
        if not self._socket.closed:
            self._has_gone = True
            # If strangers have filled the queue of events, ZeroMQ's thread waits for room and holds a lock that the
            # next line needs.
            self._take_events()
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close()
            self._context.term()

    def _take_events(self) -> None:
        for _ in range(_MAX_EVENTS):
            if not self._monitor.poll(0):
                return
            event = recv_monitor_message(self._monitor)
            if event["event"] != zmq.EVENT_DISCONNECTED:
                self._open.add(event["value"])
            else:
                self._open.discard(event["value"])
                self._has_gone |= event["value"] == self._peer
                self._was_refused = not self._bound


def _connection(frame: zmq.Frame) -> int:
    """File descriptor of the connection that a frame came by; descriptors of closed connections are reused."""
    return int(frame.get(zmq.SRCFD))
