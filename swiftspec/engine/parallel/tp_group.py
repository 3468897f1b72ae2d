"""TP group: ranks that compute one model together, each a process with its shard; their collectives and commands.

The transport is `torch.distributed`: gloo between CPUs; between GPUs NCCL, and gloo for commands.
R rows, N numbers of each.
"""

import fcntl
import os
import socket
import struct
import time
from datetime import timedelta
from typing import Self
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import FileStore  # type: ignore[attr-defined]  # public, though its annotations do not say so

from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.parallel.store import NodeStore

# A dead rank's connections close, so nobody waits for it. A timeout would only end a rank that is idle.
_TIMEOUT = timedelta(days=365)
# A waiting rank yields its core again and again, which measured faster than sleeping: the transport's threads run on
# that core, too. A rank that has waited this long has no forward to delay.
_AWAKE_S = 0.05
_COMMAND_BYTES = 1024  # holds most commands: eight rows of a large tree, or a few hundred slots to keep
_LENGTH = struct.Struct("<q")
_SIOCGIFADDR = 0x8915  # linux/sockios.h


class TPGroup:
    """The ranks of a process group, seen from one of them, rank 0 is the leader; a TP group of one does nothing.

    All ranks call collectives in the same order, with the same shapes. If a rank is gone they raise ConnectionError at
    once, and the TP group can no longer be used.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._parts: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        self._command = torch.zeros(_LENGTH.size + _COMMAND_BYTES, dtype=torch.uint8)
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._kept: Store | None = None  # alive

    @classmethod
    def join(cls, store: str, *, rank: int, size: int, device: torch.device | str, curve: Curve | None = None) -> Self:
        """Meet the other ranks; returns when all are there.

        store: meeting place: `file:///path` on one machine, of a file that does not exist yet; across machines
        `tcp://host:port/prefix` of a running `StoreServer`, whose keys `curve` has, with a prefix for each TP group.

        ValueError: if that address or the rank is invalid.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank is {rank}; expected 0 to {size - 1}, of {size} ranks")
        tp_group = cls()
        if size == 1:
            return tp_group
        place, interface, tp_group._kept = _meeting_place(store, size, curve)
        is_cuda = torch.device(device).type == "cuda"
        # Read when the group is made; the process has one group.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=place,
            rank=rank,
            world_size=size,
            timeout=_TIMEOUT,
            device_id=torch.device(device) if is_cuda else None,
        )
        tp_group.rank, tp_group.size = rank, size
        return tp_group

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group of a TP group of several ranks."""
        group = dist.group.WORLD
        assert group is not None, "a TP group of one has none"
        return group

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' `x`, in fp32 and the ranks' order, so that all get the same bits; on a GPU in place."""
        if self.size == 1:
            return x
        if x.is_cuda:
            dist.all_reduce(x)  # NCCL, which a graph can capture; few rows have a kernel of their own, see `joined_ops`
            return x
        parts = self._parts.get((x.shape, x.dtype))  # every rank's `x`, which the next call with its shape overwrites
        if parts is None:
            parts = self._parts[x.shape, x.dtype] = torch.empty((self.size, *x.shape), dtype=x.dtype)
        # One hop instead of the two of an all-reduce; and 16-bit numbers are added in 32 bits.
        _wait(dist.all_gather_into_tensor(parts.view(-1), x.reshape(-1), async_op=True))
        return parts.sum(0, dtype=torch.float32)

    def gather(self, x_RN: Tensor, num_columns: int) -> Tensor:
        """On rank 0 the ranks' columns side by side, the first `num_columns` of them; elsewhere `x_RN` unchanged."""
        if self.size == 1:
            return x_RN
        x_RN = x_RN.contiguous()
        parts = [torch.empty_like(x_RN) for _ in range(self.size)] if self.is_leader else None
        work = dist.gather(x_RN, parts, dst=0, async_op=not x_RN.is_cuda)
        if work is not None:
            _wait(work)
        return x_RN if parts is None else torch.cat(parts, -1)[:, :num_columns]

    def broadcast(self, command: bytes) -> None:
        """Send a command to the followers; returns before they receive it."""
        assert command, "an empty command would dismiss the followers"
        self._send(command)

    def receive_command(self) -> bytes:
        """The leader's next command; empty when it dismisses this rank. Waits without limit."""
        _wait(dist.broadcast(self._command, src=0, async_op=True))
        told = self._command.numpy().tobytes()
        (length,) = _LENGTH.unpack_from(told)
        if length <= _COMMAND_BYTES:
            return told[_LENGTH.size : _LENGTH.size + length]
        long = torch.empty(length, dtype=torch.uint8)
        _wait(dist.broadcast(long, src=0, async_op=True))
        return long.numpy().tobytes()

    def stop_followers(self) -> None:
        """Dismiss the followers for now; returns when they have heard it."""
        self._send(b"")
        self._until_sent()

    def close(self) -> None:
        """Leave the group; ranks that wait for this one get a ConnectionError."""
        if self.size > 1:
            dist.destroy_process_group()
            self.rank, self.size = 0, 1

    def _send(self, command: bytes) -> None:
        if self.size == 1:
            return
        self._until_sent()
        head = _LENGTH.pack(len(command))
        fits = len(command) <= _COMMAND_BYTES
        parts = [head + command.ljust(_COMMAND_BYTES, b"\0")] if fits else [head + bytes(_COMMAND_BYTES), command]
        for part in parts:
            tensor = torch.frombuffer(bytearray(part), dtype=torch.uint8)
            # Broadcasts overlap the leader's forward, and their buffers must live as long.
            self._sent.append((_started(tensor), tensor))

    def _until_sent(self) -> None:
        for work, _ in self._sent:
            _wait(work)
        self._sent.clear()


class NoOpTPGroup(TPGroup):
    """Collectives that do nothing, for timing compute alone; results are wrong. Commands go by the group itself."""

    def __init__(self, tp_group: TPGroup) -> None:
        super().__init__()
        self.rank, self.size = tp_group.rank, tp_group.size

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x_RN: Tensor, num_columns: int) -> Tensor:
        return torch.cat([x_RN] * self.size, -1)[:, :num_columns] if self.is_leader else x_RN


def _started(tensor: Tensor) -> dist.Work:
    try:
        work: dist.Work | None = dist.broadcast(tensor, src=0, async_op=True)
    except RuntimeError as error:
        raise ConnectionError(f"a rank of this TP group is gone: {error}") from None
    assert work is not None, "this rank is in the group"
    return work


def _wait(work: dist.Work | None) -> None:
    """Wait until the work is done. ConnectionError if it fails."""
    assert work is not None, "this rank is in the group"
    sleep_at = time.perf_counter() + _AWAKE_S
    try:
        while not work.is_completed() and time.perf_counter() < sleep_at:
            os.sched_yield()
        work.wait()
    except RuntimeError as error:
        raise ConnectionError(f"a rank of this TP group is gone: {error}") from None


def _meeting_place(store: str, size: int, curve: Curve | None) -> tuple[Store, str, Store]:
    """The store at an address, the network interface by which ranks reach each other, and the store to keep alive.

    A process group holds on to a store's C++ half alone, which needs the Python half.
    """
    address = urlsplit(store)
    if address.scheme == "file" and address.path and not address.netloc:
        found = FileStore(address.path, size)
        return found, "lo", found
    if curve and address.scheme == "tcp" and address.hostname and address.port and address.path.strip("/"):
        served = NodeStore(address.hostname, address.port, curve)
        return PrefixStore(address.path.strip("/"), served), _interface_towards(address.hostname), served
    raise ValueError(f"store is {store!r}; expected file:///path or tcp://host:port/prefix")


def _interface_towards(host: str) -> str:
    """This machine's interface towards `host`; looked up by address, since the host's name may resolve to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    raise ValueError(f"store is at {host}, but no network interface has {own}, from where it is reached")
