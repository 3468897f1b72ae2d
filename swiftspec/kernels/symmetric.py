"""Memory that every rank of a TP group can write on every other: one buffer per rank, mapped by all of them.

The interface between collectives and the source of such memory: PyTorch's symmetric memory between GPUs, shared memory
between processes on a CPU. For kernels both are a table of addresses.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["PeerBuffers", "map_peers", "shared_buffers", "symmetric_buffers"]


@dataclass(frozen=True, slots=True)
class PeerBuffers:
    """One rank's view of the buffers.

    rank: rank of this view.
    buffers: int32 words by rank, of equal length; each starts at a multiple of 16 bytes.
    table: int64, on the device of the buffers: the address of each of them in this process.
    mapping: object that keeps the mapping alive.
    """

    rank: int
    buffers: tuple[Tensor, ...]
    table: Tensor
    mapping: object = None

    @property
    def own(self) -> Tensor:
        """This rank's buffer, which its peers write to."""
        return self.buffers[self.rank]

    @property
    def world_size(self) -> int:
        return len(self.buffers)

    @property
    def device(self) -> torch.device:
        return self.own.device


def map_peers(buffers: Sequence[Tensor], rank: int, *, mapping: object = None) -> PeerBuffers:
    """Rank `rank`'s view of buffers that this process has mapped; ValueError for buffers that kernels cannot use."""
    if not 0 <= rank < len(buffers):
        raise ValueError(f"rank is {rank}; expected 0 to {len(buffers) - 1}, for {len(buffers)} buffers")
    device = buffers[rank].device
    for index, buffer in enumerate(buffers):
        if buffer.dtype != torch.int32 or buffer.dim() != 1 or not buffer.is_contiguous():
            raise ValueError(f"buffers[{index}] is {buffer.dtype} of shape {tuple(buffer.shape)}; expected int32 words")
        if buffer.numel() != buffers[0].numel():
            raise ValueError(f"buffers[{index}] has {buffer.numel()} words; buffers[0] has {buffers[0].numel()}")
        if buffer.data_ptr() % 16:
            raise ValueError(f"buffers[{index}] starts at {buffer.data_ptr():#x}; expected a multiple of 16 bytes")
        if buffer.device.type != device.type:
            raise ValueError(f"buffers[{index}] is on {buffer.device}; expected {device.type}, as buffers[{rank}]")
    table = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.int64, device=device)
    return PeerBuffers(rank, tuple(buffers), table, mapping)


def shared_buffers(world_size: int, num_words: int, *, fill: int) -> list[Tensor]:
    """Filled CPU buffers in shared memory, to be sent to `world_size` processes that `map_peers` there."""
    return [torch.full((num_words,), fill, dtype=torch.int32).share_memory_() for _ in range(world_size)]


def symmetric_buffers(
    num_words: int, *, group: dist.ProcessGroup, device: torch.device, fill: int
) -> PeerBuffers | None:
    """Filled GPU buffers that all ranks of a group map; None, on all ranks, if the GPUs have no such memory.

    Collective: every rank of the group calls it. When it returns, every rank's buffer is filled.
    """
    if device.type != "cuda" or not _on_one_host(group):
        return None
    try:
        peers = _rendezvous(num_words, group=group, device=device, fill=fill)
    except (ImportError, RuntimeError):  # no peer access, a driver without the feature, a build without it
        peers = None
    # If one rank has none, no rank uses it: the others would wait for a rank that cannot push.
    everybody: list[bool] = [False] * dist.get_world_size(group)
    dist.all_gather_object(everybody, peers is not None, group=group)
    return peers if all(everybody) else None


def _on_one_host(group: dist.ProcessGroup) -> bool:
    hosts = [""] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    return len(set(hosts)) == 1


def _rendezvous(num_words: int, *, group: dist.ProcessGroup, device: torch.device, fill: int) -> PeerBuffers:
    # An alpha API in torch 2.11 to 2.13, so only this function uses it.
    import torch.distributed._symmetric_memory as symmetric_memory

    own = symmetric_memory.empty(num_words, dtype=torch.int32, device=device)
    handle = symmetric_memory.rendezvous(own, group)
    own.fill_(fill)
    torch.cuda.synchronize(device)  # filled before any peer, synchronised by the caller's exchange, pushes into it
    buffers = [
        own if peer == handle.rank else handle.get_remote_tensor(peer, own.shape, own.dtype)
        for peer in range(handle.world_size)
    ]
    return map_peers(buffers, handle.rank, mapping=handle)
