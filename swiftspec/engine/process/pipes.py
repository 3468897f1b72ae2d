"""The launcher's ends of the pipes to workers, and what its thread sleeps on. Nothing here waits for one worker.

The worker's end is a `multiprocessing.connection.Connection`, which may wait, since a worker waits only for its
launcher. If a worker is stopped in the middle of a message, the half that has arrived is kept here until the rest
comes.
"""

import os
import pickle
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

_LENGTH = struct.Struct("!i")  # the format of Connection for messages below 2 GiB
_READ_BYTES = 2**16
_TAKEN_WITHIN_S = 0.2  # time for a reading worker to take a message; the rest is sent with the next look


class PipeEnd:
    """Messages in both directions. EOFError, from `take`, once the worker has closed its end and all is taken."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._in, self._out = bytearray(), bytearray()
        self._messages: deque[Any] = deque()
        self._has_ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Send, or keep for later what the worker does not take; does nothing if it has gone."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        is_behind = self._flush()  # a worker that has not taken the last message is not waited for again
        self._out += _LENGTH.pack(len(body)) + body
        until_s = time.monotonic() + (0.0 if is_behind else _TAKEN_WITHIN_S)
        while self._flush() and (left_s := until_s - time.monotonic()) > 0:
            # Not `select.select`, which refuses the descriptors above 1023 that a busy server has.
            room = select.poll()
            room.register(self._socket, select.POLLOUT)
            room.poll(1000 * left_s)

    def poll(self) -> bool:
        """Whether `take` would return, or raise, at once."""
        self._flush()
        if not self._messages:
            self._fill()
        return self._has_ended or bool(self._messages)

    def take(self) -> Any:
        """The next message, after `poll` returned true."""
        if not self._messages:
            raise EOFError("the worker has closed its end")
        return self._messages.popleft()

    def close(self) -> None:
        self._socket.close()
        self._has_ended = True
        self._out.clear()

    def _flush(self) -> bool:
        """Write what is possible; returns whether more is left."""
        while self._out:
            try:
                del self._out[: self._socket.send(self._out)]
            except BlockingIOError:
                return True
            except OSError:  # `take` will report that it has gone
                self._out.clear()
        return False

    def _fill(self) -> None:
        num_read = _READ_BYTES
        while num_read == _READ_BYTES:  # fewer bytes: that was all
            try:
                piece = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            num_read = len(piece)
            self._in += piece
            self._has_ended = not piece
        while len(self._in) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in)
            if len(self._in) < _LENGTH.size + length:
                break
            self._messages.append(pickle.loads(self._in[_LENGTH.size : _LENGTH.size + length]))
            del self._in[: _LENGTH.size + length]


def pipe() -> tuple[PipeEnd, Connection]:
    ours, theirs = socket.socketpair()
    return PipeEnd(ours), Connection(theirs.detach())


class Wakeup:
    """What a thread sleeps on. Only `ring` may be called by others."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watched: tuple[int, ...] = ()
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def ring(self) -> None:
        """Wake the thread, or keep it from falling asleep."""
        os.eventfd_write(self._bell, 1)

    def watch(self, filenos: Iterable[int | None]) -> None:
        """Wait for these descriptors from now on; None is none."""
        watched = tuple(fileno for fileno in filenos if fileno is not None)
        if watched != self._watched:
            self._watched, self._poll = watched, select.poll()
            for fileno in (self._bell, *watched):
                self._poll.register(fileno, select.POLLIN)

    def wait(self, within_s: float) -> tuple[set[int], bool]:
        """Sleep for so long at most: the descriptors that are readable, and whether somebody rang."""
        readable = {fileno for fileno, _ in self._poll.poll(1e3 * within_s)}
        if has_rung := self._bell in readable:
            os.eventfd_read(self._bell)
        return readable, has_rung

    def close(self) -> None:
        """Nobody may ring any more."""
        os.close(self._bell)
