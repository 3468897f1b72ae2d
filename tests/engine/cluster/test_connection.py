import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.connection import Link
from swiftspec.engine.cluster.wire import Bye, Frame
from swiftspec.engine.process.protocol import Cancel, Committed, Failed

OURS, THEIRS = Curve.derived(b"o" * 32), Curve.derived(b"t" * 32)


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    """Of node 0 and of another node, connected."""
    first = Link("tcp://127.0.0.1:0", bind=True, curve=OURS)
    with first, Link(first.address, bind=False, curve=OURS) as other:
        meet(first, other)
        yield first, other


def meet(first: Link, other: Link) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(other.await_peer, 5.0)
        first.await_peer(5.0)
        waiting.result()
    assert first.is_up
    assert other.is_up


def arrived(link: Link, count: int) -> list[Frame]:
    frames: list[Frame] = []
    deadline_s = time.monotonic() + 10.0
    while len(frames) < count and time.monotonic() < deadline_s:
        link.wait((), 0.05)
        frames += link.frames()
    return frames


def goes_down(link: Link, within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while link.is_up and time.monotonic() < deadline_s:
        link.wait((), 0.05)
    return not link.is_up


def test_frames_arrive_whole_and_in_order(ends: tuple[Link, Link]) -> None:
    first, other = ends
    sent = [Frame(number, Committed(number, tuple(range(number)))) for number in range(300)]
    for frame in sent:
        first.send(frame)
    assert arrived(other, 300) == sent
    other.send(Frame(7, Cancel(4)))
    assert arrived(first, 1) == [Frame(7, Cancel(4))]


def test_what_was_sent_before_the_end_arrives(ends: tuple[Link, Link]) -> None:
    first, other = ends
    first.send(Frame(1, Failed("x" * 1_000_000, is_user_error=False)))
    first.send(Frame(0, Bye()))
    first.close()
    assert [type(frame.message) for frame in arrived(other, 2)] == [Failed, Bye]
    assert goes_down(other, 5.0)


def test_a_peer_that_has_gone_is_noticed_and_nothing_sent_to_it_fails(ends: tuple[Link, Link]) -> None:
    first, other = ends
    other.close()
    assert goes_down(first, 5.0)
    first.send(Frame(1, Cancel(4)))
    assert list(first.frames()) == []


def strangers_come_and_go(first: Link) -> None:
    port = int(first.address.rpartition(":")[2])
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(10), b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(60)):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(data)
    refused = pytest.raises(ValueError, match="the connection was refused; expected the same secret on both nodes")
    with Link(first.address, bind=False, curve=THEIRS) as stranger_link, refused:
        stranger_link.await_peer(5.0)


def test_strangers_are_not_heard_beside_the_peer(ends: tuple[Link, Link]) -> None:
    first, other = ends
    strangers_come_and_go(first)
    other.send(Frame(1, Cancel(4)))
    assert arrived(first, 1) == [Frame(1, Cancel(4))]
    assert first.is_up
    assert other.is_up


def test_strangers_do_not_take_the_place_of_the_peer() -> None:
    with Link("tcp://127.0.0.1:0", bind=True, curve=OURS) as first:
        strangers_come_and_go(first)
        with pytest.raises(ValueError, match=r"no peer with the secret connected within 0.1 s"):
            first.await_peer(0.1)
        with Link(first.address, bind=False, curve=OURS) as other:
            meet(first, other)


def test_a_second_node_with_the_secret_does_not_replace_the_first(ends: tuple[Link, Link]) -> None:
    first, other = ends
    with Link(first.address, bind=False, curve=OURS) as second, pytest.raises(ValueError, match=r"within 0.5 s"):
        second.await_peer(0.5)
    other.send(Frame(1, Cancel(4)))
    assert arrived(first, 1) == [Frame(1, Cancel(4))]
    assert first.is_up


def test_an_address_that_cannot_be_bound_is_one_sentence() -> None:
    in_use = pytest.raises(ValueError, match=r"cannot be bound \(Address already in use\)")
    with Link("tcp://127.0.0.1:0", bind=True, curve=OURS) as link, in_use:
        Link(link.address, bind=True, curve=OURS)


def test_a_stranger_with_the_descriptor_of_a_peer_that_has_gone_is_not_the_peer(ends: tuple[Link, Link]) -> None:
    first, other = ends
    other.close()
    assert goes_down(first, 2.0)
    port = int(first.address.rpartition(":")[2])
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    deadline_s = time.monotonic() + 1.0
    while time.monotonic() < deadline_s:
        assert not first.is_up
        first.wait((), 0.05)
    for stranger in strangers:
        stranger.close()


CROWD = """
import socket, time
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.connection import Link

link = Link("tcp://127.0.0.1:0", bind=True, curve=Curve.derived(b"o" * 32))
port = int(link.address.rpartition(":")[2])
try:
    for _ in range(1500):
        socket.create_connection(("127.0.0.1", port), timeout=2.0).close()
        time.sleep(0.001)
except TimeoutError:
    print("nobody accepts any more")
link.close()
"""


def test_what_strangers_leave_while_nobody_looks_does_not_hold_up_the_end() -> None:
    """ZeroMQ's thread waits for somebody to take the events. In a process of its own: a hang would hold the GIL."""
    crowd = subprocess.run([sys.executable, "-c", CROWD], capture_output=True, text=True, timeout=60, check=True)
    assert crowd.stdout == "nobody accepts any more\n"
