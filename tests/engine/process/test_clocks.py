from multiprocessing import Pipe

import pytest

from swiftspec.engine.process.clocks import LeastDelay, TimedConnection, TimedMessage


def test_the_message_that_was_fastest_counts() -> None:
    delay = LeastDelay()
    assert delay.seconds is None
    for sent_s, received_s in ((0.0, 100.3), (1.0, 101.1), (2.0, 102.9)):  # the receiver's clock is 100 s ahead
        delay.note(sent_s, received_s)
    assert delay.seconds == pytest.approx(100.1, abs=1e-3)


def test_clocks_that_drift_apart_are_followed_in_both_directions() -> None:
    for drift in (2e-5, -2e-5):
        delay = LeastDelay()
        for second in range(3600):
            delay.note(second, second * (1 + drift) + 0.001)
        assert delay.seconds == pytest.approx(3600 * drift + 0.001, abs=1e-4)


def test_a_worker_tells_how_long_messages_took_to_it() -> None:
    ours, theirs = Pipe()
    worker = TimedConnection(theirs.fileno())
    theirs._handle = None  # type: ignore[attr-defined]  # the descriptor is the worker's now
    with ours, worker:
        worker.send("ready")
        first = ours.recv()
        assert (first.message, first.delay_s) == ("ready", None)
        ours.send(TimedMessage("do", first.sent_s - 5.0, None))
        assert worker.recv() == "do"
        worker.send(["done"])
        answer = ours.recv()
        assert answer.message == ["done"]
        assert answer.delay_s == pytest.approx(5.0, abs=0.5)
