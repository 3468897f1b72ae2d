"""Signals that end a program (Ctrl-C, SIGTERM, SIGHUP): where they interrupt, and where they are only recorded.

A program calls `ending_signals_raised` once, as the command line does. Otherwise only Ctrl-C is handled: a library
leaves the signals of the program that uses it alone.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_NOT_OURS = (signal.SIG_IGN, None)  # ignored, or handled by a program that embeds Python and could not be restored
_ENDS_WITHIN_S = 5.0  # the cleanup after the first signal; a later signal ends the program at once


class _Ending:
    """The signal that ends this program, once one has come."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.noted: list[Event] = []  # events to set instead of interrupting
        self._since_s = 0.0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The handler of all three. The first signal interrupts; signals soon after it change nothing.

        `timeout` and shells with a pipeline send several. A cleanup after the first is cut short only if it takes too
        long.
        """
        if self.number is not None:
            if time.monotonic() - self._since_s > _ENDS_WITHIN_S:
                os._exit(128 + number)
            return
        self.number, self._since_s = number, time.monotonic()
        if self.noted:
            self.noted[-1].set()
        else:
            raise KeyboardInterrupt


_ending = _Ending()


def was_interrupted() -> bool:
    """Whether a signal has ended this program, within `ending_signals_raised`."""
    return _ending.number is not None


def exit_code() -> int:
    """Exit code of a program ended by a signal, as in shells: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + (_ending.number or signal.SIGINT)


@contextmanager
def ending_signals_raised(*, ignored_afterwards: bool = False) -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; `exit_code` tells them apart.

    It does nothing outside the main thread, or within itself, and leaves an ignored signal (nohup) ignored.
    """
    handler = _ending.handle
    if current_thread() is not main_thread() or any(signal.getsignal(number) == handler for number in _ENDING):
        yield
        return
    previous = {number: before for number in _ENDING if (before := signal.getsignal(number)) not in _NOT_OURS}
    _ending.number = None
    for number in previous:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_IGN if ignored_afterwards else before)


@contextmanager
def interrupts_noted() -> Iterator[Event]:
    """Context in which a signal sets the event instead of interrupting between a message and its bookkeeping.

    Ctrl-C always; SIGTERM and SIGHUP within `ending_signals_raised`. Nested contexts share one event.
    """
    noted = _ending.noted[-1] if _ending.noted else Event()
    if current_thread() is not main_thread():  # only the main thread is interrupted
        yield noted
        return
    previous = signal.getsignal(signal.SIGINT)
    takes_over = previous not in (_ending.handle, *_NOT_OURS)
    _ending.noted.append(noted)
    if takes_over:
        signal.signal(signal.SIGINT, lambda *_: noted.set())
    try:
        yield noted
    finally:
        _ending.noted.pop()
        if takes_over:
            signal.signal(signal.SIGINT, previous)


@contextmanager
def signals_held() -> Iterator[None]:
    """Context that delays signals until its end. A process started in it never receives them.

    Signals go to all processes of a terminal or a service; the launcher handles them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
