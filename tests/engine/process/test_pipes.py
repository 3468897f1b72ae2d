import os
import pickle
import struct
import threading
import time
from collections.abc import Iterator
from itertools import chain, repeat
from multiprocessing.connection import Connection

import pytest

from swiftspec.engine.process.pipes import PipeEnd, pipe

Ends = tuple[PipeEnd, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = pipe()
    with theirs:
        yield ours, theirs
    ours.close()


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    ours, theirs = ends
    for message in ({"a": 1}, None, (1, 2)):
        ours.send(message)
        assert theirs.recv() == message
    theirs.send("one")
    theirs.send("two")
    assert ours.poll()
    assert [ours.take(), ours.take()] == ["one", "two"]
    assert not ours.poll()


def test_what_nobody_takes_does_not_hold_up_the_sender(ends: Ends) -> None:
    """As a prompt of many tokens for a worker that is stopped."""
    ours, theirs = ends
    before_s = time.monotonic()
    ours.send(bytes(10_000_000))
    ours.send("next")
    assert time.monotonic() - before_s < 5.0
    taken: list[object] = []
    reader = threading.Thread(target=lambda: taken.extend((theirs.recv(), theirs.recv())))
    reader.start()
    while reader.is_alive():  # it is thawed
        ours.poll()
    assert taken == [bytes(10_000_000), "next"]


@pytest.mark.usefixtures("many_descriptors")
def test_a_descriptor_above_1023_is_as_good_as_any() -> None:
    ours, theirs = pipe()
    with theirs:
        assert ours.fileno() > 1023
        ours.send(bytes(10_000_000))
        assert not ours.poll()
    ours.close()


def test_the_end_of_the_wait_may_fall_between_two_looks_at_the_clock(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = chain([0.0, 0.1999], repeat(10.0))
    monkeypatch.setattr("swiftspec.engine.process.pipes.time.monotonic", lambda: next(clock))
    ours, _ = ends
    ours.send(bytes(10_000_000))


def test_half_a_message_is_no_message(ends: Ends) -> None:
    """A worker that is stopped while it writes a long one."""
    ours, theirs = ends
    body = pickle.dumps("long")
    frame = struct.pack("!i", len(body)) + body
    os.write(theirs.fileno(), frame[:7])
    assert not ours.poll()
    os.write(theirs.fileno(), frame[7:])
    assert ours.poll()
    assert ours.take() == "long"


def test_what_was_said_before_the_end_is_taken_first(ends: Ends) -> None:
    ours, theirs = ends
    theirs.send("last words")
    theirs.close()
    assert ours.poll()
    assert ours.take() == "last words"
    assert ours.poll()
    with pytest.raises(EOFError, match="closed its end"):
        ours.take()
    ours.send("nobody hears it")


def test_hanging_up_is_the_end(ends: Ends) -> None:
    ours, theirs = ends
    ours.close()
    assert ours.poll()
    with pytest.raises(EOFError, match="closed its end"):
        ours.take()
    with pytest.raises(EOFError):
        theirs.recv()


def test_a_worker_that_takes_nothing_is_waited_for_once(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(bytes(10_000_000))
    before_s = time.monotonic()
    for number in range(100):
        ours.send(number)
    assert time.monotonic() - before_s < 1.0
    received: list[object] = []
    reader = threading.Thread(target=lambda: received.extend(theirs.recv() for _ in range(101)))
    reader.start()
    while reader.is_alive():
        ours.poll()
    assert received[1:] == list(range(100))
