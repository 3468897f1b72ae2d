"""Waiting for several descriptors, or for another thread."""

import os
import select
from collections.abc import Iterable

__all__ = ["Wakeup"]


class Wakeup:
    """What a thread sleeps on. Only `ring` may be called by others."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watched: tuple[int, ...] = ()
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def ring(self) -> None:
        """Wake the thread, or keep it from falling asleep."""
        os.eventfd_write(self._bell, 1)

    def watch(self, filenos: Iterable[int | None]) -> None:
        """Wait for these descriptors from now on; None is none."""
        watched = tuple(fileno for fileno in filenos if fileno is not None)
        if watched != self._watched:
            self._watched, self._poll = watched, select.poll()
            for fileno in (self._bell, *watched):
                self._poll.register(fileno, select.POLLIN)

    def wait(self, within_s: float) -> tuple[set[int], bool]:
        """Sleep for so long at most: the descriptors that are readable, and whether somebody rang."""
        readable = {fileno for fileno, _ in self._poll.poll(1e3 * within_s)}
        if has_rung := self._bell in readable:
            os.eventfd_read(self._bell)
        return readable, has_rung

    def close(self) -> None:
        """Nobody may ring any more."""
        os.close(self._bell)
