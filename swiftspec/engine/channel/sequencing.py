"""Message sequencing: which of a peer's messages still count. No socket, no clock.

A message carries its request's number, an attempt and a sequence number. An attempt is one exchange: it lasts from its
opening until a message is missing or invalid, or the leading end opens the next one. Nothing is delivered from a broken
or older exchange, so programs that started together receive each other's messages completely or not at all.
"""

from typing import NamedTuple

from swiftspec.policies.effects import Message, Probe, Stop


class Header(NamedTuple):
    """Numbers sent with a message."""

    request: int
    attempt: int
    sequence: int


class Exchange:
    """One end of the exchange about a request. leads: the target's end, which opens attempts by probing."""

    def __init__(self, request: int, *, leads: bool) -> None:
        self._request = request
        self._leads = leads
        self._attempt = 0
        self._num_sent = self._num_heard = 0  # in this attempt
        self._broken = False

    def header(self, message: Message) -> Header:
        if self._leads and isinstance(message, Probe):
            self._open(self._attempt + 1)
        header = Header(self._request, self._attempt, self._num_sent)
        self._num_sent += 1
        return header

    def admits(self, header: Header, message: Message) -> bool:
        # The end of a request counts whatever was lost before it, and so does the opening of an attempt.
        is_opening = isinstance(message, Probe | Stop)
        if is_opening and not self._leads and header.attempt > self._attempt:
            self._open(header.attempt)
        elif header.attempt != self._attempt or header.sequence < self._num_heard:
            return False
        elif not isinstance(message, Stop) and (self._broken or header.sequence > self._num_heard):
            self.break_off()
            return False
        self._num_heard = header.sequence + 1
        return True

    def break_off(self) -> None:
        """Deliver nothing more of this attempt, because an invalid message came."""
        self._broken = True

    def _open(self, attempt: int) -> None:
        self._attempt = attempt
        self._num_sent = self._num_heard = 0
        self._broken = False
