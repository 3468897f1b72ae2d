"""One direction of the channel between two simulated processes: messages arrive a hop later, in order."""

from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

import simpy

from swiftspec.policies.effects import Message

__all__ = ["Arrival", "Link"]


class Arrival(NamedTuple):
    """A message, and whether its receiver did nothing but wait for it when it came."""

    message: Message
    awaited: bool


class Link:
    """From one process to another."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._arrived: deque[Arrival] = deque()
        self._coming: deque[Message] = deque()
        self._arrival_s = 0.0  # of the last of those
        self._awaited: simpy.Event | None = None  # by a receive that found nothing

    def send(self, message: Message, *, hop_s: float) -> None:
        """It will be there a hop from now, though never before one sent earlier."""
        self._coming.append(message)
        self._arrival_s = max(self._arrival_s, self._env.now + hop_s)
        arrival = self._env.timeout(self._arrival_s - self._env.now)
        arrival.callbacks.append(self._deliver)

    def receive(self, within_s: float | None = None) -> Generator[simpy.Event, Any, "Arrival | None"]:
        """The next message, as soon as it is there; None if none comes within the bound."""
        if not self._arrived:
            self._awaited = self._env.event()
            yield self._awaited if within_s is None else self._awaited | self._env.timeout(within_s)
            self._awaited = None
        return self._arrived.popleft() if self._arrived else None

    def poll(self) -> "Arrival | None":
        """The next message, if it is there."""
        return self._arrived.popleft() if self._arrived else None

    def _deliver(self, _: simpy.Event) -> None:
        # The oldest message, whoever's arrival this is: rounding may swap two that are due at once.
        self._arrived.append(Arrival(self._coming.popleft(), awaited=self._awaited is not None))
        if self._awaited is not None:
            self._awaited.succeed()
            self._awaited = None  # who comes next is awaited by nobody, until the receiver runs
