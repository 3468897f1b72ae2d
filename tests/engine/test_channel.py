import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.engine.channel import Channel, decode, encode
from swiftspec.policies.effects import Message, PeerError, Stop, Subtree, Verdict

tokens = st.integers(0, 2**31 - 1)


@st.composite
def subtrees(draw: st.DrawFn) -> Subtree:
    ids = draw(st.lists(tokens, min_size=1, max_size=40))
    parents = [-1, *(draw(st.integers(0, index - 1)) for index in range(1, len(ids)))]
    return Subtree(draw(tokens), tuple(ids), tuple(parents))


messages = st.one_of(subtrees(), st.lists(tokens, max_size=40).map(lambda ids: Verdict(tuple(ids))), st.just(Stop()))


@given(messages, st.integers(0, 2**32 - 1))
def test_what_is_encoded_is_decoded(message: Message, request: int) -> None:
    assert decode(encode(message, request)) == (message, request)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_a_peer_error(frame: bytes) -> None:
    try:
        message, request = decode(frame)
    except PeerError:
        return
    assert encode(message, request) == frame


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        encode(Verdict((1, 2)), 1)[:-1],
        encode(Stop(), 1) + b"\0" * 4,
        struct.pack("<IB", 1, 9),
        struct.pack("<IB3i", 1, 2, 5, 7, 0),  # a root with a parent
        struct.pack("<IB5i", 1, 2, 5, 7, 8, -1, 1),  # a node that is its own parent
        struct.pack("<IBi", 1, 0, -4),  # a negative token
        bytes(5 + 4 * 10_000),
    ],
    ids=["empty", "truncated", "trailing", "kind", "root", "parent", "token", "oversized"],
)
def test_nonsense_is_the_peers_error(frame: bytes) -> None:
    with pytest.raises(PeerError):
        decode(frame)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Channel, Channel]]:
    address = f"ipc://{tmp_path}/channel"
    with (
        Channel(address, bind=True, interrupted=lambda: True) as left,
        Channel(address, bind=False, interrupted=lambda: True) as right,
    ):
        yield left, right


def test_messages_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    sent: list[Message] = [Verdict((1, 2)), Verdict(()), Stop()]
    for message in sent:
        left.send(message)
    assert [right.receive() for _ in sent] == sent
    assert right.poll() is None


def test_messages_of_another_request_are_dropped(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.request, right.request = 1, 2
    left.send(Verdict((1,)))
    left.request = 2
    left.send(Verdict((2,)))
    assert right.receive() == Verdict((2,))


def test_waiting_ends_when_told_to_stop(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(InterruptedError):
        ends[0].receive()


def test_sending_without_a_peer_ends_when_told_to_stop(tmp_path: Path) -> None:
    with (
        Channel(f"ipc://{tmp_path}/alone", bind=True, interrupted=lambda: True) as alone,
        pytest.raises(InterruptedError),
    ):
        alone.send(Stop())
