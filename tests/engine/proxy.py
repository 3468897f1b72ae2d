"""Proxy between a target and its draft that loses, delays and invents messages."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import zmq

from swiftspec.engine.process.fork_server_client import ForkServer
from swiftspec.engine.process.placement import LocalExecutor
from swiftspec.engine.process.protocol import Setup, WorkerSpec
from swiftspec.engine.process.worker_handle import Worker
from swiftspec.policies.effects import Role

_LOOK_EVERY_MS = 5


class Proxy:
    """Between the target's end of a channel, at `near`, and the draft's, at `far`; runs in a thread until closed."""

    def __init__(self, near: str, far: str) -> None:
        self._near, self._far = near, far
        self._lock = threading.Lock()
        self._to_lose = 0
        self._held_until_s = 0.0
        self._invented: list[bytes] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def lose(self, num_messages: int) -> None:
        """The next messages, whichever way they go."""
        with self._lock:
            self._to_lose += num_messages

    def delay(self, seconds: float) -> None:
        """Hold everything back so long."""
        with self._lock:
            self._held_until_s = time.monotonic() + seconds

    def invent(self, frames: list[bytes]) -> None:
        """Say this to the target, as if the draft had."""
        with self._lock:
            self._invented += frames

    def _run(self) -> None:
        with zmq.Context(io_threads=1) as context, context.socket(zmq.PAIR) as near, context.socket(zmq.PAIR) as far:
            for socket in (near, far):
                socket.setsockopt(zmq.LINGER, 0)
            near.connect(self._near)
            far.bind(self._far)
            poller = zmq.Poller()
            poller.register(near, zmq.POLLIN)
            poller.register(far, zmq.POLLIN)
            waiting: deque[tuple[zmq.Socket[bytes], bytes]] = deque()
            while not self._ended.is_set():
                poller.poll(_LOOK_EVERY_MS)
                for source, drain in ((near, far), (far, near)):
                    while (frame := _received(source)) is not None:
                        if not self._loses():
                            waiting.append((drain, frame))
                waiting.extend((near, frame) for frame in self._inventions())
                while waiting and time.monotonic() >= self._held_until_s:
                    _send(*waiting.popleft())

    def _loses(self) -> bool:
        with self._lock:
            lost = self._to_lose > 0
            self._to_lose -= lost
            return lost

    def _inventions(self) -> list[bytes]:
        with self._lock:
            invented, self._invented = self._invented, []
            return invented


def _received(socket: zmq.Socket[bytes]) -> bytes | None:
    try:
        return socket.recv(zmq.NOBLOCK)
    except zmq.Again:
        return None


def _send(socket: zmq.Socket[bytes], frame: bytes) -> None:
    with suppress(zmq.Again):  # nobody is there
        socket.send(frame, zmq.NOBLOCK)


class ProxiedSite(LocalExecutor):
    """This machine, with a proxy on its one channel."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        super().__init__(folder, fork_server)
        self._near, self._far = f"ipc://{folder / 'near'}", f"ipc://{folder / 'far'}"
        self.proxy = Proxy(self._near, self._far)

    def channel(self, target: WorkerSpec, draft: WorkerSpec, /) -> str:
        return self._near

    def start(self, setup: Setup) -> Worker:
        is_draft = setup.role is Role.DRAFT and setup.channels
        return super().start(replace(setup, channels=(self._far,)) if is_draft else setup)
