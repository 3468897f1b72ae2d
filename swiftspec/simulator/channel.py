"""One direction of the channel between two simulated processes: messages arrive one hop later, in order."""

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import simpy

from swiftspec.policies.effects import Message

__all__ = ["Link"]


class Link:
    """Channel from one process to another. `on_arrival` is called when a message is there, received or not."""

    def __init__(self, env: simpy.Environment, on_arrival: Callable[[], None]) -> None:
        self._env = env
        self._on_arrival = on_arrival
        self._arrived: deque[Message] = deque()
        self._coming: deque[Message] = deque()
        self._arrival_s = 0.0  # of the last of those
        self._awaited: simpy.Event | None = None  # by a receive that found nothing

    def send(self, message: Message, *, hop_s: float) -> None:
        """Send; the message arrives one hop from now, but never before an earlier one."""
        self._coming.append(message)
        self._arrival_s = max(self._arrival_s, self._env.now + hop_s)
        arrival = self._env.timeout(self._arrival_s - self._env.now)
        arrival.callbacks.append(self._deliver)

    def receive(self, within_s: float | None = None) -> Generator[simpy.Event, Any, Message | None]:
        """The next message, as soon as it arrives; None if none comes in time."""
        if not self._arrived:
            self._awaited = self._env.event()
            yield self._awaited if within_s is None else self._awaited | self._env.timeout(within_s)
            self._awaited = None
        return self._arrived.popleft() if self._arrived else None

    def poll(self) -> Message | None:
        """The next message, if it has arrived."""
        return self._arrived.popleft() if self._arrived else None

    def _deliver(self, _: simpy.Event) -> None:
        # The oldest message, whichever arrival triggered this: rounding may swap two that are due at once.
        self._arrived.append(self._coming.popleft())
        self._on_arrival()
        if self._awaited is not None:
            self._awaited.succeed()
            self._awaited = None  # no receive waits for the next message until the receiver runs
