"""Ctrl-C where it may not cut in."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

__all__ = ["interrupts_held", "interrupts_noted"]


@contextmanager
def interrupts_noted() -> Iterator[Event]:
    """Ctrl-C sets the event instead of cutting in between a message received and its tokens counted."""
    noted = Event()
    try:
        previous = signal.signal(signal.SIGINT, lambda *_: noted.set())
    except ValueError:  # not the main thread, which alone may say so, and alone is interrupted
        yield noted
        return
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the end. A process started meanwhile never hears of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
