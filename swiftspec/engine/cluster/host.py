"""Host: keeps one slot, for one process of an engine at a time, on any machine. Whoever starts hosts is elsewhere.

A host holds a spare connection to the launcher and never reads it. Once something arrives there, the host forks a
worker that has this connection, and opens the next one. So a restarted draft is a fork, and reports do not pass through
the host. It ends when the launcher closes the spare connection, or vanishes; so do its worker and its fork server.
"""

import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from swiftspec.engine.cluster.connections import GONE_AFTER_S, Hello, Strangers, introduce, watch_peer
from swiftspec.engine.process.fork_server_client import ForkedProcess, ForkServer
from swiftspec.engine.process.worker_handle import ENDS_WITHIN_S
from swiftspec.errors import EngineError
from swiftspec.machine import free_port

_RETRY_EVERY_S = 0.2
_CONNECT_S = 2.0
_LOOK_EVERY_S = 0.25  # at the fork server, while a worker is being started


class Host:
    """A host that has connected to its launcher; `serve` does the rest.

    slot: which of the engine's processes it keeps. devices: GPUs for its worker, as CUDA numbers them here; the cores
    of this process if not given. within_s: longest wait for the launcher.

    EngineError: if the launcher cannot be reached in time, or does not have the key. ValueError: if it refuses this.
    """

    def __init__(
        self,
        launcher: tuple[str, int],
        key: bytes,
        *,
        slot: int,
        devices: Sequence[int] | None = None,
        within_s: float = 30.0,
    ) -> None:
        self._launcher, self._key, self._slot = launcher, key, slot
        self._devices = tuple(sorted(os.sched_getaffinity(0)) if devices is None else devices)
        self._port = 0
        self._worker: ForkedProcess | None = None
        self._fork_server = ForkServer(may_compile=True)  # on this machine, nobody else has
        self._fork_server.prepare()
        try:
            self._spare = self._connected(within_s)
        except BaseException:
            self._fork_server.close()
            raise

    def _connected(self, within_s: float) -> socket.socket:
        until_s = time.monotonic() + within_s
        while True:
            try:
                return self._connect()
            except Strangers as error:
                if time.monotonic() > until_s:
                    address, port = self._launcher
                    raise EngineError(
                        f"there is no launcher with the run's key at {address}:{port} ({str(error) or 'it hung up'})"
                    ) from error
            time.sleep(_RETRY_EVERY_S)

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._launcher, timeout=_CONNECT_S)
        try:
            connection.settimeout(None)
            watch_peer(connection)
            address = connection.getsockname()[0]
            self._port = self._port or free_port(address)
            hello = Hello(
                slot=self._slot,
                node=address,
                machine=this_machine(),
                devices=self._devices,
                port=self._port,
            )
            introduce(connection, self._key, hello)
        except BaseException:
            connection.close()
            raise
        return connection

    def serve(self) -> None:
        """Start workers for the launcher until it ends. Errors as of the constructor, if it cannot be reached again."""
        try:
            while self._is_wanted():
                self._end_worker(within_s=0.0)
                with self._spare as connection:
                    self._worker = self._fork_server.start(connection.fileno())
                self._spare = self._connected(GONE_AFTER_S)
        finally:
            self.close()

    def _is_wanted(self) -> bool:
        """Wait until the spare connection is to become a worker's; false once the launcher has ended."""
        awaited = select.poll()
        awaited.register(self._spare, select.POLLIN | select.POLLRDHUP)
        while not awaited.poll(1000 * _LOOK_EVERY_S if self._is_starting else None):
            pass
        try:
            return bool(self._spare.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    @property
    def _is_starting(self) -> bool:
        """Whether a worker has been asked for and not started; a fork server that hangs is ended meanwhile."""
        if self._worker is None or self._worker.pid is not None:
            return False
        self._worker.attend()
        return not self._worker.has_ended

    def _end_worker(self, *, within_s: float) -> None:
        """End the slot's previous worker, which may be suspended; it has so much time to end by itself."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end(within_s=within_s)

    def close(self) -> None:
        self._spare.close()
        self._end_worker(within_s=ENDS_WITHIN_S)
        self._fork_server.close()


def this_machine() -> str:
    """Identity of this machine until it boots again: nodes of a cluster may be several on one machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname()
