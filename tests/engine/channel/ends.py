"""One end of a channel for one request, and waiting as in a test."""

from __future__ import annotations

import time
from types import TracebackType

import zmq

from swiftspec.engine.channel.zmq_channel import NO_PAYLOAD, Channel, Payload, RequestChannel
from swiftspec.policies.effects import Message

_IDLE_POLL_MS = 50


def refusals(part: RequestChannel) -> list[None]:
    """A list that grows with every message that this end refuses from now on."""
    exchange, refused = part._exchange, list[None]()
    break_off = exchange.break_off

    def counted() -> None:
        refused.append(None)
        break_off()

    vars(exchange)["break_off"] = counted
    return refused


class End:
    """A channel's end; request 0 is open."""

    def __init__(self, address: str, *, target: bool, vocab_size: int, most_payload_bytes: int = 0) -> None:
        self.channel = Channel(
            address, bind=target, leads=target, vocab_size=vocab_size, most_payload_bytes=most_payload_bytes
        )
        self.begin(0)

    def begin(self, request: int, payload: Payload = NO_PAYLOAD) -> None:
        """Go over to another request."""
        self._part = self.channel.open(request, payload)
        self._refused = refusals(self._part)

    def __enter__(self) -> End:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.__exit__(kind, error, trace)

    @property
    def num_refused(self) -> int:
        return len(self._refused)

    def send(self, message: Message) -> None:
        self._part.send(message)

    def poll(self) -> Message | None:
        return self._part.poll()

    def receive(self, within_s: float) -> Message | None:
        """The next message; None if none comes in time."""
        until_s = time.perf_counter() + within_s
        while (message := self.poll()) is None and (left_s := until_s - time.perf_counter()) > 0:
            self.channel.socket.poll(max(1, min(_IDLE_POLL_MS, round(1e3 * left_s))), zmq.POLLIN)
        return message
