"""A key-value store at the launcher, over which the ranks of a TP group on several machines find each other.

Torch's own `TCPStore` accepts any connection and keeps whatever it writes. Here every connection is encrypted and
authenticated by the run's keys (`curve`), and the stored amount is bounded.
"""

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from threading import Lock, Thread

import zmq
from torch.distributed.distributed_c10d import Store
from zmq.utils.monitor import recv_monitor_message

from swiftspec.engine.channel.curve import FRAMING_BYTES, Curve, secure

MAX_KEYS = 4096
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 2**16
MAX_BYTES = 2**24  # of all values together
_HANDSHAKE_S = 5.0  # for a peer to prove that it has the keys
_FAREWELL_S = 1.0  # for the last answers to be sent
_LOOK_EVERY_S = 0.02
_OK, _MISSING, _REFUSED = b"ok", b"missing", b"refused"
_REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_ENDINGS = _REFUSALS | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
_NEVER_MS = 2**30


class StoreServer(AbstractContextManager["StoreServer"]):
    """The store's server, run by a thread until it is closed; a context manager.

    address: IPv4 address of one interface. port: 0 is any free one. OSError: if they cannot be listened on.
    """

    def __init__(self, address: str, port: int, curve: Curve) -> None:
        self._context = zmq.Context(io_threads=1)
        socket = self._context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, round(1000 * _FAREWELL_S))
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_VALUE_BYTES + FRAMING_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, round(1000 * _HANDSHAKE_S))
        secure(socket, curve, server=True)
        try:
            socket.bind(f"tcp://{address}:{port}")
        except zmq.ZMQError as error:
            socket.close()
            self._context.term()
            raise OSError(error.errno, zmq.strerror(error.errno or 0)) from error
        self.port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._thread = Thread(target=self._serve, args=(socket,), name="store", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._context.term()
        self._thread.join()

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        held = _Values()
        with suppress(zmq.ContextTerminated), socket:
            while True:
                socket.send_multipart(held.answer(socket.recv_multipart()))


class _Values:
    """Stored values by key, within bounds."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def answer(self, asked: Sequence[bytes]) -> list[bytes]:
        """Status, and a value if there is one."""
        match asked:
            case [b"check", *keys]:
                return [_OK if all(key in self._values for key in keys) else _MISSING]
            case [b"set", key, value]:
                return self._set(key, value)
            case [b"get", key]:
                return [_OK, self._values[key]] if key in self._values else [_MISSING]
            case [b"add", key, amount]:
                return self._add(key, amount)
            case [b"delete", key]:
                return [_MISSING if self._values.pop(key, None) is None else _OK]
        name, *arguments = asked
        return _refused(f"{name[:20]!r} with {len(arguments)} arguments is not an operation of this store")

    def _set(self, key: bytes, value: bytes) -> list[bytes]:
        is_new = key not in self._values
        total = sum(map(len, self._values.values())) - len(self._values.get(key, b"")) + len(value)
        if len(key) > MAX_KEY_BYTES or (is_new and len(self._values) >= MAX_KEYS) or total > MAX_BYTES:
            return _refused(f"{len(value)} bytes more do not fit; expected {MAX_BYTES} at most of {MAX_KEYS} keys")
        self._values[key] = value
        return [_OK]

    def _add(self, key: bytes, amount: bytes) -> list[bytes]:
        try:
            value = b"%d" % (int(self._values.get(key, b"0")[:20]) + int(amount[:20]))
        except ValueError:
            return _refused("a summand is not a number")
        status, *why = self._set(key, value)
        return [status, *(why or [value])]


def _refused(why: str) -> list[bytes]:
    return [_REFUSED, why.encode()]


class NodeStore(Store):
    """A connection to the launcher's store, with the interface that torch's process groups expect.

    Every operation raises PermissionError if the two ends do not have the same keys, ConnectionError once the server
    has gone, and ValueError if the server refuses it.
    """

    def __init__(self, address: str, port: int, curve: Curve) -> None:
        super().__init__()
        self._where = f"{address}:{port}"
        self._lock = Lock()
        self._is_known = False  # to the server: this end has proved that it has the keys
        self._lost: OSError | None = None  # why an answer did not come, after which none ever will
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_VALUE_BYTES + FRAMING_BYTES)
        secure(self._socket, curve, server=False)
        self._monitor = self._socket.get_monitor_socket(_ENDINGS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(f"tcp://{self._where}")

    def close(self) -> None:
        if not self._socket.closed:
            with suppress(zmq.ZMQError):  # the context is terminated already
                self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close()
            self._context.term()

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(b"set", key.encode(), value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """A value; waits until it is set."""
        while True:
            self.wait([key])
            _, *found = self._ask(b"get", key.encode())
            if found:  # nothing if another rank has just deleted it
                return found[0]

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(b"add", key.encode(), b"%d" % amount)[1])

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(b"check", *(key.encode() for key in keys))[0] == _OK

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set. TimeoutError if that takes too long."""
        within_s = math.inf if timeout is None else timeout.total_seconds()
        deadline_s = time.monotonic() + within_s
        while not self.check(keys):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._where}: nobody set {', '.join(keys)} within {within_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    def delete_key(self, key: str) -> bool:
        return self._ask(b"delete", key.encode())[0] == _OK

    def _ask(self, *parts: bytes) -> list[bytes]:
        with self._lock:
            if self._lost is not None:
                raise type(self._lost)(*self._lost.args)
            self._socket.send_multipart(parts)
            try:
                self._await_answer()
            except OSError as lost:
                self._lost = lost
                raise
            answer = self._socket.recv_multipart()
        if answer[0] == _REFUSED:
            raise ValueError(f"{self._where}: {answer[1].decode('utf-8', 'replace')}")
        return answer

    def _await_answer(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while self._socket not in dict(poller.poll()):
            self._take(recv_monitor_message(self._monitor)["event"])

    def _take(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._is_known = True
        elif self._is_known:
            raise ConnectionError(f"{self._where}: the launcher has gone")
        else:
            raise PermissionError(f"{self._where}: the peer there does not have the same keys")
