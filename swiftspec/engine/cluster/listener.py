"""Listener of a launcher: keeps one spare connection for each slot, from hosts that have shown the run's key."""

import socket
import threading
import time
from typing import NamedTuple, Self

from swiftspec.engine.cluster.handshake import Hello, Strangers, admit, watch_peer

__all__ = ["Listener", "Spare"]

_PAUSE_S = 0.1
_MOST_HANDSHAKES = 64  # at a time: strangers cost threads, but not without limit


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


class Listener:
    """Listens on one address until it is closed; a context manager.

    The latest host of a slot counts: an earlier one is told to end, as if it were in the way of a restarted one.

    address: IPv4 address of one interface. key: key of the run; connections without it are closed. num_slots: slots are
    numbered from 0.

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

    def __enter__(self) -> Self:
        return self

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
