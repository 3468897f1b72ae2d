import os
import signal
import subprocess

import pytest

from swiftspec.engine.process.timeouts import RestartBudget, Silence, TargetSilence, is_stopped
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_silence_is_what_was_looked_at(clock: Clock) -> None:
    silence = Silence(clock)
    for _ in range(10):
        clock.now_s += 0.1
        silence.look()
    assert silence.look() == pytest.approx(1.0)
    silence.broken()
    assert silence.look() == 0.0


def test_who_was_suspended_blames_nobody(clock: Clock) -> None:
    silence = Silence(clock)
    clock.now_s += 3600.0
    assert silence.look() < 1.0


@pytest.mark.parametrize(
    ("busy", "seconds", "said"),
    [
        (0.9, 200.0, ""),
        (0.9, 400.0, "no token from the target for 300 s: it computes"),
        (0.01, 20.0, ""),
        (0.01, 60.0, "no token from the target for 30 s: it uses hardly any processor time, as a process that hangs"),
    ],
)
def test_a_target_that_computes_may_be_silent_for_longer_than_one_that_is_idle(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    busy: float,
    seconds: float,
    said: str,
) -> None:
    monkeypatch.setattr("swiftspec.engine.process.timeouts._processor_s", lambda _: busy * clock.now_s)
    silence = TargetSilence(clock)
    for _ in range(int(4 * seconds)):
        clock.now_s += 0.25
        silence.look([os.getpid()])
    assert len(caplog.messages) == bool(said)
    assert all(message.startswith(said) for message in caplog.messages), caplog.messages


def test_restarts_are_counted_within_an_hour(clock: Clock) -> None:
    budget = RestartBudget(3, clock)
    for _ in range(3):
        assert budget.allows_now
        budget.take()
        budget.succeeded()
        clock.now_s += 600.0
    assert budget.is_spent
    assert not budget.allows_now
    clock.now_s += 1801.0  # an hour after the first
    assert budget.allows_now
    budget.take()
    assert budget.is_spent


def test_once_a_month_goes_on_for_ever(clock: Clock) -> None:
    budget = RestartBudget(1, clock)
    for _ in range(100):
        assert budget.allows_now
        budget.take()
        budget.succeeded()
        clock.now_s += 30 * 24 * 3600.0


def test_the_first_restart_is_at_once_and_pauses_double_while_it_fails(clock: Clock) -> None:
    budget = RestartBudget(100, clock)
    pauses_s = []
    for _ in range(12):
        waited_s = 0.0
        while not budget.allows_now:
            clock.now_s += 0.25
            waited_s += 0.25
        pauses_s.append(waited_s)
        budget.take()
    assert pauses_s[:4] == [0.0, 0.5, 1.0, 2.0]
    assert max(pauses_s) == 30.0
    budget.succeeded()
    assert budget.allows_now


def test_no_restart_may_be_allowed_at_all(clock: Clock) -> None:
    assert RestartBudget(0, clock).is_spent


def test_a_stopped_process_is_known_as_such() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)
