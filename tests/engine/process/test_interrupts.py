import os
import signal
import subprocess
import sys
import threading
import time
from typing import cast

import pytest

from swiftspec.engine import launcher
from swiftspec.engine.process.interrupts import ending_signals_raised, exit_code, interrupts_noted, signals_held
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.engine.running import Events, next_event


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # until the handler has run


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_signals_that_end_a_program_raise_and_have_their_exit_codes(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with ending_signals_raised():
        with pytest.raises(KeyboardInterrupt):
            send(number)
        send(number)  # again: what the first began goes on
        send(signal.SIGTERM)
        assert exit_code() == code
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_they_are_noted_instead_where_they_may_not_cut_in(number: signal.Signals) -> None:
    with ending_signals_raised(), interrupts_noted() as noted:
        assert not noted.is_set()
        send(number)
        assert noted.is_set()


def test_a_slow_handler_does_not_keep_a_request_waiting() -> None:
    """Slower than the time between two looks, as on a machine that stands still for a moment."""
    events = Events()
    interrupted = threading.Event()

    def note_slowly(*_: object) -> None:
        time.sleep(0.2)
        interrupted.set()

    before = signal.signal(signal.SIGINT, note_slowly)
    rescue = threading.Timer(9.0, events.put, [(1,)])
    try:
        rescue.start()
        threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGINT]).start()
        assert next_event(events, interrupted) is None
    finally:
        rescue.cancel()
        signal.signal(signal.SIGINT, before)


def test_a_library_takes_note_of_ctrl_c_alone() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with interrupts_noted() as noted:
        assert {number: signal.getsignal(number) for number in before} == before
        send(signal.SIGINT)
        assert noted.is_set()


def test_what_is_ignored_stays_so() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals_raised():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_that_python_cannot_restore_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler like that of a program in another language that embeds Python."""
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    with ending_signals_raised(), interrupts_noted() as noted:
        assert not noted.is_set()
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_are_not_interrupted() -> None:
    seen = []

    def work() -> None:
        with ending_signals_raised(), interrupts_noted() as noted:
            seen.append(noted.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_process_started_while_they_are_held_never_hears_of_them() -> None:
    with signals_held():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    time.sleep(0.3)
    assert process.poll() is None
    process.kill()
    process.wait()


class NeverReady:
    """A group of workers that load for ever."""

    is_ready = False

    def attend_start(self) -> None:
        pass

    def unready(self) -> list[str]:
        return []


def await_ready(*, interrupted_after_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, interrupted_after_s)
    launcher.Launcher._await_ready([cast(WorkerGroup, NeverReady())], threading.Event())


def test_an_interrupt_during_a_start_is_raised_as_such_at_every_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the complaint of a lock that it came too early for; so two hundred come at different moments."""
    monkeypatch.setattr(launcher, "_LOOK_EVERY_S", 0.0)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(200):
            with pytest.raises(KeyboardInterrupt):
                await_ready(interrupted_after_s=1e-3 + 7e-6 * number)
    finally:
        signal.signal(signal.SIGALRM, before)
