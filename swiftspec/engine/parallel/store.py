"""A key-value store at the launcher, over which the ranks of a TP group on several machines find each other.

Torch's own `TCPStore` accepts any connection. Here every connection is encrypted and authenticated by the run's keys
(`curve`), and whoever has these is believed. Ranks have them from the launcher, and end with it: so nobody looks here
whether it is gone.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from threading import Lock, Thread

import zmq
from torch.distributed.distributed_c10d import Store

from swiftspec.engine.channel.curve import FRAMING_BYTES, Curve, secure

MAX_VALUE_BYTES = 2**16
_HANDSHAKE_S = 5.0  # for a peer to prove that it has the keys
_FAREWELL_S = 1.0  # for the last answers to be sent
_ANSWERS_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.02
_FOR_EVER = timedelta(days=365)
_YES, _NO = b"yes", b"no"


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
        values: dict[bytes, bytes] = {}
        with suppress(zmq.ContextTerminated), socket:
            while True:
                socket.send_multipart(_answer(values, socket.recv_multipart()))


def _answer(values: dict[bytes, bytes], asked: Sequence[bytes]) -> list[bytes]:
    """Yes or no, and a value if there is one."""
    match asked:
        case [b"check", *keys]:
            return [_YES if all(key in values for key in keys) else _NO]
        case [b"set", key, value]:
            values[key] = value
            return [_YES]
        case [b"get", key] if key in values:
            return [_YES, values[key]]
        case [b"add", key, amount]:
            values[key] = b"%d" % (int(values.get(key, b"0")) + int(amount))
            return [_YES, values[key]]
        case [b"delete", key] if key in values:
            del values[key]
            return [_YES]
    return [_NO]


class NodeStore(Store):
    """A connection to the launcher's store, with the interface that torch's process groups expect.

    TimeoutError: if nothing answers, as with other keys, or a value that is waited for is not set in time.
    """

    def __init__(self, address: str, port: int, curve: Curve) -> None:
        super().__init__()
        self._where = f"{address}:{port}"
        self._lock = Lock()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, round(1000 * _ANSWERS_WITHIN_S))
        secure(self._socket, curve, server=False)
        self._socket.connect(f"tcp://{self._where}")

    def close(self) -> None:
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
        return self._ask(b"check", *(key.encode() for key in keys))[0] == _YES

    def wait(self, keys: Sequence[str], timeout: timedelta = _FOR_EVER) -> None:
        deadline_s = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > deadline_s:
                within_s = timeout.total_seconds()
                raise TimeoutError(f"{self._where}: nobody set {', '.join(keys)} within {within_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    def delete_key(self, key: str) -> bool:
        return self._ask(b"delete", key.encode())[0] == _YES

    def _ask(self, *parts: bytes) -> list[bytes]:
        with self._lock:
            self._socket.send_multipart(parts)
            try:
                return self._socket.recv_multipart()
            except zmq.Again as error:
                raise TimeoutError(f"{self._where}: no answer within {_ANSWERS_WITHIN_S:g} s") from error
