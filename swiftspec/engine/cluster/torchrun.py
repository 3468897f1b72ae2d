"""Hosts that torchrun starts: every process is one rank of a plan's engine, and process 0 is the launcher, too.

Torchrun's store says where the launcher listens. It is open to everybody who can reach it, so the key is not in it:
processes derive that from a secret that they have read.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address
from threading import Thread
from typing import TYPE_CHECKING, Self

from swiftspec.devices.local import Device
from swiftspec.engine.cluster.executor import ClusterExecutor
from swiftspec.engine.cluster.host import Host
from swiftspec.engine.process.protocol import WorkerSpec

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public; its annotations do not say so

_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.05
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunProcess:
    """One of torchrun's processes.

    rank, local_rank: its number among all processes, and among those of its machine. master: address and port of
    torchrun's store. prefix: separates the runs that use one store. is_local: all processes are of one machine.
    """

    rank: int
    local_rank: int
    num_processes: int
    master: tuple[str, int]
    prefix: str
    is_local: bool

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        run, restarts = environment["TORCHELASTIC_RUN_ID"], environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            num_processes=int(environment["WORLD_SIZE"]),
            master=(environment["MASTER_ADDR"], int(environment["MASTER_PORT"])),
            prefix=f"swiftspec/{run}/{restarts}",
            is_local=environment["LOCAL_WORLD_SIZE"] == environment["WORLD_SIZE"],
        )

    def check(self, slots: Sequence[WorkerSpec], *, what: str) -> None:
        """ValueError unless there is a process for each rank."""
        if len(slots) != self.num_processes:
            raise ValueError(
                f"torchrun started {self.num_processes} processes; {what} has {len(slots)} ranks: "
                "expected one process for each rank"
            )

    @contextmanager
    def launch(self, slots: Sequence[WorkerSpec], *, device: Device, secret: bytes) -> Iterator[ClusterExecutor]:
        """Process 0's part: all processes as one executor. ValueError if they do not come in time."""
        store = self._store()
        address = _LOOPBACK if self.is_local else self._own_address()
        with ExitStack() as stack:
            executor = stack.enter_context(
                ClusterExecutor(slots, device=device, address=address, key=_key(secret, self.prefix))
            )
            store.set(f"{self.prefix}/launcher", "{}:{}".format(*executor.launcher))
            host = self._host(executor.launcher, device=device, key=executor.key)
            serving = Thread(target=host.serve, name="swiftspec-host")
            serving.start()
            stack.callback(serving.join)
            stack.enter_context(executor)  # leaves first, which ends the host
            executor.await_hosts(_WITHIN_S)
            yield executor

    def host(self, *, device: Device, secret: bytes) -> Host:
        """The other processes' part: a host of process 0, which `Host.serve` is until that ends.

        ValueError if process 0 does not say in time where it is; EngineError if it is not there, or has another secret.
        """
        deadline_s = time.monotonic() + _WITHIN_S
        store, name = self._store(), f"{self.prefix}/launcher"
        try:
            while not store.check([name]):  # torch's own wait ignores signals
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"nothing is there after {_WITHIN_S:g} s")
                time.sleep(_LOOK_EVERY_S)
            address, _, port = store.get(name).decode("utf-8", "replace").rpartition(":")
            launcher = str(IPv4Address(address)), int(port)
        except (RuntimeError, ValueError, TimeoutError) as error:  # torch's DistError is a RuntimeError
            where = "{}:{}".format(*self.master)
            raise ValueError(f"torchrun's store at {where} does not say where process 0 is ({error})") from error
        return self._host(launcher, device=device, key=_key(secret, self.prefix))

    def _host(self, launcher: tuple[str, int], *, device: Device, key: bytes) -> Host:
        devices = (self.local_rank,) if device == "cuda" else None
        return Host(launcher, key, slot=self.rank, devices=devices, within_s=_WITHIN_S)

    def _store(self) -> TCPStore:
        # Takes a second, which a process that is refused does not spend.
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public; its annotations do not say so

        host, port = self.master
        try:
            timeout = timedelta(seconds=_WITHIN_S)
            return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        except RuntimeError as error:
            raise ValueError(f"torchrun's store does not answer at {host}:{port}") from error

    def _own_address(self) -> str:
        """Address of this machine's interface towards torchrun's store."""
        with socket.create_connection(self.master, timeout=_WITHIN_S) as connection:
            own: str = connection.getsockname()[0]
            return own


def _key(secret: bytes, prefix: str) -> bytes:
    """Key of a run, which only holders of the secret can know."""
    return hmac.digest(secret, f"swiftspec hosts {prefix}".encode(), hashlib.sha256)
