"""Clocks of two machines: their difference, from messages that carry the time at which they were sent."""

import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

_DRIFT = 5e-5  # seconds a second: clocks of computers drift apart by less


class LeastDelay:
    """The least delay of messages in one direction, by clocks that differ and drift.

    A delay is the time of receipt in the receiver's clock, less the time of sending in the sender's: it contains the
    clocks' difference. The least one was on its way for the shortest time; it grows as the clocks may have drifted.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._noted_s = 0.0

    def note(self, sent_s: float, received_s: float) -> None:
        delay_s = received_s - sent_s
        if self.seconds is not None:
            delay_s = min(delay_s, self.seconds + _DRIFT * (received_s - self._noted_s))
        self.seconds, self._noted_s = delay_s, received_s


class TimedMessage(NamedTuple):
    """A worker's message. sent_s: in the worker's clock. delay_s: least delay of messages to the worker so far."""

    message: Any
    sent_s: float
    delay_s: float | None


class TimedConnection(Connection):
    """A worker's end of the connection to a launcher whose clock may be another. Both ends send `TimedMessage`s."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self._delay = LeastDelay()

    def send(self, obj: Any) -> None:
        """Send, with the time and what the other end needs to know of its own messages."""
        super().send(TimedMessage(obj, time.perf_counter(), self._delay.seconds))

    def recv(self) -> Any:
        timed: TimedMessage = super().recv()
        self._delay.note(timed.sent_s, time.perf_counter())
        return timed.message
