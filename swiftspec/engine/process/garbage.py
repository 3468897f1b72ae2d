"""Garbage of a process that computes: its collector is off while requests run, since it makes a round longer."""

import gc

_MOST_ENDED = 64  # requests; what they leave behind are cycles, of some 100 kB each


class RequestGarbage:
    """What requests have left behind since the last collection. What was frozen before the first one costs no time."""

    def __init__(self) -> None:
        self._num_ended = 0

    def note_end(self) -> None:
        self._num_ended += 1

    def collect(self, *, is_idle: bool) -> None:
        """Collect it where no round waits, and after many requests even if one does."""
        if is_idle or self._num_ended >= _MOST_ENDED:
            gc.collect()
            self._num_ended = 0
