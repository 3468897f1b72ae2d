import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

from swiftspec.engine.cluster.connections import Hello, Spare
from swiftspec.engine.cluster.executor import RemoteWorker
from swiftspec.engine.cluster.host import this_machine
from swiftspec.engine.process.clocks import TimedMessage
from swiftspec.engine.process.protocol import Cancel, EndReport, FailureReport, Setup
from swiftspec.engine.process.worker_handle import WorkerLostError
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase, Span
from tests.engine.setups import setup

AHEAD_S = 1000.0  # of the worker's clock
SETUP = setup(role=Role.DRAFT)


@contextmanager
def ends(*, has_own_clock: bool = True) -> Iterator[tuple[RemoteWorker, Connection]]:
    """A worker as the launcher sees it, and its own end; it has the setup."""
    ours, theirs = socket.socketpair()
    machine = "another" if has_own_clock else this_machine()
    hello = Hello(slot=0, node="192.0.2.1", machine=machine, devices=(0,), port=1)
    worker = RemoteWorker(SETUP, lambda: (Spare(ours, hello.node, hello), SETUP))
    with Connection(theirs.detach()) as end:
        assert end.recv() == SETUP
        yield worker, end
    worker.close()


@pytest.mark.parametrize(("has_own_clock", "shift_s"), [(True, AHEAD_S), (False, 0.0)])
def test_times_come_in_the_launchers_clock(has_own_clock: bool, shift_s: float) -> None:
    with ends(has_own_clock=has_own_clock) as (worker, end):
        worker.send(Cancel(1))
        command: TimedMessage = end.recv()
        delay_s = time.perf_counter() + AHEAD_S - command.sent_s
        done = EndReport(1, [Span(Role.DRAFT, Phase.EXPAND, Role.DRAFT, 1, 0, 5003.0, 5004.0)])
        end.send(TimedMessage([done], time.perf_counter() + AHEAD_S, delay_s))
        (report,) = worker.reports()
    assert isinstance(report, EndReport)
    (span,) = report.spans
    assert span.start_s == pytest.approx(5003.0 - shift_s, abs=0.1)
    assert span.end_s - span.start_s == pytest.approx(1.0)


def test_a_worker_without_a_host_waits_and_takes_no_commands() -> None:
    asked: list[Setup] = []
    worker = RemoteWorker(SETUP, lambda: asked.append(SETUP))
    worker.send(Cancel(1))
    assert not worker.poll()
    assert (worker.fileno(), worker.state, len(asked)) == (None, "waiting for a node with room", 2)
    worker.hang_up()
    assert not worker.poll()
    assert len(asked) == 2  # a host that comes now is the next worker's


def test_what_a_worker_says_of_its_end_is_raised() -> None:
    with ends() as (worker, end):
        assert worker.state == "on 192.0.2.1"
        end.send(TimedMessage([FailureReport("no such model", is_user_error=True)], 0.0, None))
        with pytest.raises(ValueError, match=r"^no such model$"):
            next(worker.reports())
        end.close()
        with pytest.raises(WorkerLostError, match=r"the draft process on 192\.0\.2\.1 ended, or its node has gone"):
            next(worker.reports())
