"""Message sequencing: which of a peer's messages still count. No socket, no clock.

A message carries its request's number, an attempt and a sequence number. An attempt is one exchange: from its
opening until a message is missing, or makes no sense, or the leading end opens the next one. Nothing is delivered out
of a broken or an older exchange, so that programs which were started together hear each other, whole, or nothing.
"""

from typing import NamedTuple

from swiftspec.policies.effects import Message, Probe, Stop

__all__ = ["Exchange", "Header"]


class Header(NamedTuple):
    """What a message carries beside itself."""

    request: int
    attempt: int
    sequence: int


class Exchange:
    """One end.

    Parameters
    ----------
    leads : bool
        Exactly one end, the target's, opens attempts: it probes. The other one follows.

    Attributes
    ----------
    num_refused : int
        Messages not delivered: gaps, nonsense, and what came after them; not those of older attempts and requests.
    """

    def __init__(self, *, leads: bool) -> None:
        self._leads = leads
        self._request = self._attempt = 0
        self._num_sent = self._num_heard = 0  # of this attempt
        self._broken = False
        self.num_refused = 0

    def begin(self, request: int) -> None:
        """A request: its first attempt is open."""
        self._request = request
        self._open(0)

    def header(self, message: Message) -> Header:
        """Of the next message to send."""
        if self._leads and isinstance(message, Probe):
            self._open(self._attempt + 1)
        header = Header(self._request, self._attempt, self._num_sent)
        self._num_sent += 1
        return header

    def admits(self, header: Header, message: Message) -> bool:
        """Whether a message that has come is to be delivered."""
        if header.request != self._request:
            return False
        # The end of a request is news whatever was lost before it; and so is the opening of an attempt.
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
        """What has come makes no sense: nothing more of this attempt is delivered."""
        self._broken = True
        self.num_refused += 1

    def _open(self, attempt: int) -> None:
        self._attempt = attempt
        self._num_sent = self._num_heard = 0
        self._broken = False
