"""Outcome of one fault, and the faults themselves: signals, files and frames. See `campaign`."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import zmq

HANG_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One fault and what came of it.

    Parameters
    ----------
    world, fault, moment : str
    wrong : tuple of str
        What should have been otherwise.
    ending : str
        `finished`, `target lost`, or an exit code.
    losses : int
    gap_s : float
        The longest time without a token.
    end_s : float
        From a fault that ends the run to its end.
    """

    world: str
    fault: str
    moment: str
    wrong: tuple[str, ...]
    ending: str
    losses: int = 0
    gap_s: float = 0.0
    end_s: float = 0.0

    @property
    def is_ok(self) -> bool:
        return not self.wrong

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"is_ok": self.is_ok}


class World(Protocol):
    """A system in which faults happen."""

    def __init__(self, directory: Path, scratch: Path, rng: random.Random) -> None: ...

    def suffer(self) -> Record:
        """Inject one random fault."""

    def close(self) -> list[Record]:
        """Findings that are known only at the end."""


class Injector:
    """Sends signals, removes files, says nonsense. What it stops goes on after a while, unless it is for good.

    Parameters
    ----------
    pids : callable
        Process ids by name, as they are now: of `fork server`, `target`, `draft`, `launcher`.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]], scratch: Path, rng: random.Random) -> None:
        self._pids, self._scratch, self._rng = pids, scratch, rng
        self._timers: list[threading.Timer] = []
        self.stopped_s = 0.0  # how long a target was stopped, at most

    def signal(self, names: Iterable[str], number: signal.Signals) -> bool:
        """Send it to each that is there; whether any was."""
        now = self._pids()
        sent = False
        for name in names:
            if name in now:
                with suppress(ProcessLookupError):
                    os.kill(now[name], number)
                    sent = True
        return sent

    def stop(self, names: Iterable[str], *, for_good: bool = False) -> bool:
        now = self._pids()
        sent = self.signal(names, signal.SIGSTOP)
        if not for_good:
            seconds = self._rng.uniform(0.1, 1.5)
            self.stopped_s = max(self.stopped_s, seconds)
            for name in names:
                if name in now:
                    timer = threading.Timer(seconds, _continue, (now[name],))
                    timer.start()
                    self._timers.append(timer)
        return sent

    def remove_sockets(self) -> bool:
        """As a cleaner of temporary files would."""
        found = list(self._scratch.glob("swiftspec-*/channel-*"))
        for path in found:
            path.unlink(missing_ok=True)
        return bool(found)

    def say_nonsense(self) -> bool:
        """Frames of random bytes, from one more peer of the channel."""
        for path in self._scratch.glob("swiftspec-*/channel-*"):
            with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as peer:
                peer.setsockopt(zmq.LINGER, 0)
                peer.connect(f"ipc://{path}")
                for _ in range(self._rng.randint(1, 200)):
                    frame = self._rng.randbytes(self._rng.choice((0, 5, 13, 40, 400)))
                    with suppress(zmq.Again):
                        peer.send(frame, zmq.NOBLOCK)
                time.sleep(0.05)
            return True
        return False

    def settle(self) -> None:
        """Until all that was stopped for a while goes on."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
