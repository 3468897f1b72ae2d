import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.engine.channel.sequencing import Header
from swiftspec.engine.channel.zmq_channel import decode, encode
from swiftspec.policies.effects import CatchUp, Message, PeerError, Probe, ProbeReply, Stop, Subtree, Verdict
from tests.engine.channel.ends import End

VOCAB_SIZE = 50
FIRST = Header(0, 0, 0)
tokens = st.integers(0, 2**31 - 1)
token_lists = st.lists(tokens, max_size=40).map(tuple)
headers = st.builds(Header, *[st.integers(0, 2**32 - 1)] * 3)


@st.composite
def subtrees(draw: st.DrawFn) -> Subtree:
    ids = draw(st.lists(tokens, min_size=1, max_size=40))
    parents = [-1, *(draw(st.integers(0, index - 1)) for index in range(1, len(ids)))]
    return Subtree(draw(tokens), tuple(ids), tuple(parents))


messages = st.one_of(
    subtrees(),
    st.builds(Verdict, token_lists),
    st.just(Stop()),
    st.just(Probe()),
    st.builds(ProbeReply, tokens),
    st.builds(CatchUp, tokens, token_lists, st.booleans()),
)


@given(messages, headers)
def test_what_is_encoded_is_decoded(message: Message, header: Header) -> None:
    decoded, decoded_header = decode(encode(message, header))
    assert (type(decoded), decoded, decoded_header) == (type(message), message, header)


def head(kind: int) -> bytes:
    return struct.pack("<IIIB", *FIRST, kind)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


@given(st.binary(max_size=200) | st.builds(bytes.__add__, st.integers(0, 8).map(head), st.binary(max_size=60)))
def test_random_bytes_are_a_message_or_a_peer_error(frame: bytes) -> None:
    try:
        message, header = decode(frame)
    except PeerError:
        return
    assert encode(message, header) == frame


NONSENSE = {
    "empty": b"",
    "truncated": encode(Verdict((1, 2)), FIRST)[:-1],
    "trailing": encode(Stop(), FIRST) + b"\0" * 4,
    "kind": head(9),
    "no subtree": head(2),
    "root": head(2) + numbers(5, 7, 0),  # with a parent
    "parent": head(2) + numbers(5, 7, 8, -1, 1),  # of itself
    "orphan": head(2) + numbers(5, 7, 8, -1, -1),
    "token": head(0) + numbers(-4),
    "hello": head(4) + numbers(1, 2),
    "text": head(5) + numbers(1),
    "start": head(5) + numbers(1, 2, 3),
    "oversized": bytes(13 + 4 * 8194),
}


@pytest.mark.parametrize("frame", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_the_peers_error(frame: bytes) -> None:
    with pytest.raises(PeerError):
        decode(frame)


Open = Callable[..., End]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/channel"


@pytest.fixture
def open_end(address: str) -> Iterator[Open]:
    """Opens the target's end, or the draft's."""
    with ExitStack() as stack:

        def open_end(*, target: bool) -> End:
            return stack.enter_context(End(address, target=target, vocab_size=VOCAB_SIZE))

        yield open_end


@pytest.fixture
def ends(open_end: Open) -> tuple[End, End]:
    return open_end(target=True), open_end(target=False)


def test_messages_arrive_in_order(ends: tuple[End, End]) -> None:
    target, draft = ends
    sent: list[Message] = [Verdict((1, 2)), Verdict(()), Stop()]
    for message in sent:
        target.send(message)
    assert [draft.receive(9) for _ in sent] == sent
    assert draft.poll() is None


def test_messages_reach_their_own_request(ends: tuple[End, End]) -> None:
    """Also those that come before this end has begun it; what comes after its end is dropped."""
    target, draft = (end.channel for end in ends)
    for request in (2, 1, 4):
        target.open(request).send(Verdict((request,)))
    assert ends[1].receive(0.2) is None
    first, second = draft.open(1), draft.open(2)
    assert (first.poll(), second.poll(), first.poll()) == (Verdict((1,)), Verdict((2,)), None)
    draft.close(1)
    target.open(1).send(Verdict((9,)))
    target.open(5).send(Verdict((5,)))
    assert ends[1].receive(0.2) is None
    assert draft.open(4).poll() == Verdict((4,))
    assert draft.open(5).poll() == Verdict((5,))
    assert first.poll() is None


def test_nonsense_breaks_the_request_that_it_names_and_no_other(ends: tuple[End, End]) -> None:
    target, draft = (end.channel for end in ends)
    named, other = target.open(1), target.open(2)
    draft.transmit(encode(Verdict((VOCAB_SIZE,)), Header(1, 0, 0)), is_probe=False)
    for request in (1, 2):
        draft.open(request).send(ProbeReply(request))
    assert ends[0].receive(0.2) is None
    assert (named.poll(), other.poll()) == (None, ProbeReply(2))


def test_sending_without_a_peer_waits_for_one_once_and_drops(open_end: Open) -> None:
    channel = open_end(target=True)
    channel.send(Stop())
    start_s = time.perf_counter()
    for _ in range(2000):
        channel.send(Stop())
    assert time.perf_counter() - start_s < 30  # minutes, if each waited


def test_sending_to_a_peer_that_does_not_read_never_blocks(ends: tuple[End, End]) -> None:
    target, draft = ends
    for _ in range(5000):
        target.send(Verdict((1,) * 1000))
    target.send(Probe())  # the queue is full: this one is dropped too
    admitted = 0
    while draft.receive(1.0) is not None:
        admitted += 1
    assert 1000 < admitted < 5000
    target.send(Probe())
    assert isinstance(draft.receive(9), Probe)


@pytest.mark.parametrize("frame", [*NONSENSE.values(), encode(Verdict((VOCAB_SIZE,)), FIRST)])
def test_nonsense_ends_the_exchange_until_the_next(open_end: Open, address: str, frame: bytes) -> None:
    target = open_end(target=True)
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(address)
        peer.send(frame)
        peer.send(encode(ProbeReply(1), FIRST))
        if len(frame) > 4 * 8194:  # which ZeroMQ itself refuses, and hangs up
            assert target.receive(0.2) in (None, ProbeReply(1))
            return
        await_refusals(target, 2)
        target.send(Probe())
        peer.send(encode(ProbeReply(2), Header(0, 1, 0)))
        assert target.receive(9) == ProbeReply(2)


def await_refusals(target: End, count: int) -> None:
    """Wait until a number of messages has been refused and none accepted."""
    deadline_s = time.monotonic() + 9
    while target.num_refused < count and time.monotonic() < deadline_s:
        assert target.receive(0.05) is None
    assert target.num_refused == count


def meet(target: End, draft: End) -> None:
    """Probe until it is heard."""
    for _ in range(20):
        target.send(Probe())
        if draft.receive(0.1) is not None:
            return


def test_bytes_that_are_not_zeromqs_are_no_more_than_nonsense(open_end: Open, address: str) -> None:
    target = open_end(target=True)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4000), b"\xff" + bytes(8) + b"\x7f", b""):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(address.removeprefix("ipc://"))
            try:
                stranger.sendall(noise)
            except BrokenPipeError:
                continue  # hung up on already
            assert target.receive(0.05) is None
    draft = open_end(target=False)
    meet(target, draft)
    draft.send(ProbeReply(5))
    assert target.receive(9) == ProbeReply(5)


def test_a_peer_that_died_is_replaced(open_end: Open, address: str) -> None:
    target = open_end(target=True)
    for number in range(3):
        with End(address, target=False, vocab_size=VOCAB_SIZE) as draft:
            meet(target, draft)
            draft.send(ProbeReply(number))
            assert target.receive(9) == ProbeReply(number)
            draft.send(ProbeReply(99))
