"""Payloads beside messages: they come whole and with their message, or the exchange breaks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from swiftspec.engine.channel.sequencing import Header
from swiftspec.engine.channel.zmq_channel import Payload, encode
from swiftspec.policies.effects import Message, Probe, ProbeReply, Stop, Verdict
from tests.engine.channel.ends import End

VOCAB_SIZE, MOST_BYTES = 50, 2**20


class Payloads:
    """Beside each verdict goes its first token, repeated; nothing else may come."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.payload = Payload(self.outgoing, self.takes)

    def outgoing(self, message: Message) -> bytes:
        return bytes(message.tokens[:1]) * 300_000 if isinstance(message, Verdict) else b""

    def takes(self, message: Message, payload: bytes) -> bool:
        if payload:
            self.taken.append(payload)
        return payload == self.outgoing(message)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/channel"


@pytest.fixture
def target(address: str) -> Iterator[End]:
    with End(address, target=True, vocab_size=VOCAB_SIZE, most_payload_bytes=MOST_BYTES) as end:
        yield end


@pytest.fixture
def draft(address: str) -> Iterator[End]:
    with End(address, target=False, vocab_size=VOCAB_SIZE, most_payload_bytes=MOST_BYTES) as end:
        yield end


def test_a_payload_comes_with_its_message(target: End, draft: End) -> None:
    """Also one that comes before this end has begun the request."""
    payloads = Payloads()
    target.begin(1, Payloads().payload)
    for message in (Verdict((7,)), Verdict((8, 9)), Stop()):
        target.send(message)
    assert draft.receive(0.2) is None  # of request 0
    draft.begin(1, payloads.payload)
    assert [draft.receive(9) for _ in range(3)] == [Verdict((7,)), Verdict((8, 9)), Stop()]
    assert payloads.taken == [b"\7" * 300_000, b"\x08" * 300_000]
    draft.send(ProbeReply(1))
    assert target.receive(9) == ProbeReply(1)


@pytest.mark.parametrize(
    "frames", [(b"",), (b"\7",), (b"\7" * 300_000, b""), ()], ids=["empty", "short", "two", "none"]
)
def test_a_wrong_payload_breaks_the_exchange_until_the_next(
    address: str, draft: End, frames: tuple[bytes, ...]
) -> None:
    draft.begin(1, Payloads().payload)
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.bind(address)
        peer.send_multipart((encode(Verdict((7,)), Header(1, 0, 0)), *frames))
        peer.send(encode(Verdict(()), Header(1, 0, 1)))
        assert draft.receive(0.3) is None
        assert draft.num_refused == 2
        peer.send(encode(Probe(), Header(1, 1, 0)))
        assert draft.receive(9) == Probe()


def test_a_payload_that_was_not_declared_is_nonsense(target: End, draft: End) -> None:
    target.begin(1, Payloads().payload)
    draft.begin(1)
    target.send(Verdict((7,)))
    assert draft.receive(0.3) is None
    assert draft.num_refused == 1
