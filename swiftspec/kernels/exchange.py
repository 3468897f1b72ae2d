"""Rows pushed from every rank to all ranks of a TP group, without flags: the data itself shows whether it arrived.

They are pushed to memory that every rank can write on every other: one buffer per rank, mapped by all of them. Between
GPUs it is PyTorch's symmetric memory, between processes on a CPU shared memory; for kernels both are a table of
addresses.

A word that still holds `SENTINEL` has not arrived, and no sender sends it: as an fp32 it is -0.0, as a pair of 16-bit
values (+0.0, -0.0), and zeros of the other sign add up to the same. Three slots take turns. While the ranks fill one of
them, each clears the previous one: nobody writes there until two turns later, and so not before this rank has finished
the current one. Sums are in rank order, so that all ranks get the same bits. TensorRT-LLM's and FlashInfer's all-reduce
for few rows uses the same protocol ("Lamport"); NCCL's LL protocol keeps a flag with each word instead.

A missing rank is polled `max_polls` times. Then `Exchange.check` raises, and the exchange is unusable.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.errors import FieldError

MAX_RANKS = 8  # a row of every rank is in registers; more ranks, or longer rows, spill
MAX_ROW_BYTES = 16384
MAX_POLLS = 2**26  # a poll reads W rows from L2, up to a microsecond: about a minute, for ranks that still compile
NUM_SLOTS = 3
PAYLOADS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
SENTINEL = tl.constexpr(-(2**31))

# Words of `Exchange.state`.
SLOT = tl.constexpr(0)  # current slot
ARRIVED = tl.constexpr(1)  # programs of the running kernel that have read the state
ROWS = tl.constexpr(2)  # rows in the previous slot
LATE = tl.constexpr(3)  # 0, or 1 + a missing rank


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
    """Rank `rank`'s view of buffers that this process has mapped."""
    addresses = [buffer.data_ptr() for buffer in buffers]
    table = torch.tensor(addresses, dtype=torch.int64, device=buffers[rank].device)
    return PeerBuffers(rank, tuple(buffers), table, mapping)


def symmetric_buffers(num_words: int, *, group: dist.ProcessGroup, device: torch.device) -> PeerBuffers | None:
    """GPU buffers full of SENTINEL that all ranks of a group map; None, on all ranks, if the GPUs have no such memory.

    Collective: every rank of the group calls it. When it returns, every rank's buffer is filled.
    """
    if device.type != "cuda" or not _on_one_host(group):
        return None
    try:
        peers = _rendezvous(num_words, group=group, device=device)
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


def _rendezvous(num_words: int, *, group: dist.ProcessGroup, device: torch.device) -> PeerBuffers:
    # An alpha API in torch 2.11 to 2.13, so only this function uses it.
    import torch.distributed._symmetric_memory as symmetric_memory

    own = symmetric_memory.empty(num_words, dtype=torch.int32, device=device)
    handle = symmetric_memory.rendezvous(own, group)
    own.fill_(SENTINEL.value)
    torch.cuda.synchronize(device)  # filled before any peer, synchronised by the caller's exchange, pushes into it
    buffers = [
        own if peer == handle.rank else handle.get_remote_tensor(peer, own.shape, own.dtype)
        for peer in range(handle.world_size)
    ]
    return map_peers(buffers, handle.rank, mapping=handle)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Slots in peers' memory for rows of one size and dtype, and the state that selects the current slot.

    All ranks use it in the same order with the same number of rows. The host reads none of it, so its kernels can be
    replayed in a CUDA graph.
    """

    peers: PeerBuffers
    hidden: int
    dtype: torch.dtype
    max_rows: int
    max_polls: int = MAX_POLLS
    state: Tensor = field(init=False)

    def __post_init__(self) -> None:
        needed = self.words_needed(
            world_size=self.peers.world_size, hidden=self.hidden, dtype=self.dtype, max_rows=self.max_rows
        )
        if self.peers.own.numel() < needed:
            raise ValueError(f"peers have buffers of {self.peers.own.numel()} words; this exchange needs {needed}")
        object.__setattr__(self, "state", torch.zeros(4, dtype=torch.int32, device=self.peers.device))

    @staticmethod
    def words_needed(*, world_size: int, hidden: int, dtype: torch.dtype, max_rows: int) -> int:
        """Words of each rank's buffer, all initially SENTINEL; ValueError for rows that cannot be sent."""
        if not 0 < world_size <= MAX_RANKS:
            raise ValueError(f"world_size is {world_size}; supported: 1 to {MAX_RANKS}")
        if dtype not in PAYLOADS:
            raise FieldError("dtype", dtype, f"supported: {', '.join(map(str, PAYLOADS))}")
        if not 0 < hidden * dtype.itemsize <= MAX_ROW_BYTES or hidden * dtype.itemsize % 4:
            raise ValueError(
                f"hidden is {hidden}, of {dtype}; supported: rows of up to {MAX_ROW_BYTES} bytes, in whole 32-bit words"
            )
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; expected a positive number")
        return NUM_SLOTS * world_size * max_rows * _stride(hidden, dtype)

    @property
    def words(self) -> int:
        """32-bit words of a row."""
        return self.hidden * self.dtype.itemsize // 4

    @property
    def stride(self) -> int:
        """Words from one row of a slot to the next."""
        return _stride(self.hidden, self.dtype)

    def check(self) -> None:
        """TimeoutError if a rank did not come. Waits for the device: call it once per request, not per call."""
        late = int(self.state[LATE.value])
        if late:
            raise TimeoutError(
                f"rank {self.peers.rank} of {self.peers.world_size} waited {self.max_polls} polls for rank {late - 1}"
            )


@triton.jit
def push(words, offsets, inside, peers, rank, WORLD: tl.constexpr):
    """Store the words at the same offsets of every rank's buffer, its own included; no word is sent as SENTINEL."""
    words = tl.where(words == SENTINEL, 0, words)
    for step in tl.static_range(WORLD):
        # Every rank begins with itself, so that no link carries all ranks at once.
        buffer = tl.load(peers + (rank + step) % WORLD).to(tl.pointer_type(tl.int32))
        # The compiler knows nothing of an address from a table, and would store word by word.
        tl.store(tl.multiple_of(buffer, 16) + offsets, words, mask=inside)


@triton.jit
def unpack(words, PAYLOAD: tl.constexpr):
    """The fp32 values of the words, in their order in memory."""
    if PAYLOAD.is_fp32():
        values = words.to(tl.float32, bitcast=True)
    elif PAYLOAD.is_fp16():
        low = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        values = tl.interleave(low, high)
    else:  # bf16 is the upper half of an fp32
        low = (words << 16).to(tl.float32, bitcast=True)
        high = (words & -65536).to(tl.float32, bitcast=True)
        values = tl.interleave(low, high)
    return values


@triton.jit
def receive(inbox, columns, inside, rank_stride, max_polls, WORLD: tl.constexpr, PAYLOAD: tl.constexpr):
    """(sum over ranks, in their order, of their words at `inbox`; 0 or 1 + a rank whose words did not come)."""
    polls = 0
    late = 1
    total = tl.zeros_like(unpack(columns, PAYLOAD))
    while (late > 0) & (polls < max_polls):
        # All ranks in every poll: their loads are in flight together, and the last poll has the sum.
        missing = tl.zeros_like(columns)
        total = tl.zeros_like(total)
        for sender in tl.static_range(WORLD):
            words = tl.load(inbox + sender * rank_stride + columns, mask=inside, other=0, volatile=True)
            missing = tl.where(words == SENTINEL, sender + 1, missing)
            total += unpack(words, PAYLOAD)
        late = tl.max(missing, axis=0)
        polls += 1
    return total, late


@triton.jit
def advance(state, slot, num_programs, num_rows):
    """Advance the state; the last program that has read it does so."""
    tl.debug_barrier()  # all threads of this program have read it
    if tl.atomic_add(state + ARRIVED, 1) == num_programs - 1:
        tl.store(state + ARRIVED, 0)
        tl.store(state + ROWS, num_rows)
        tl.store(state + SLOT, (slot + 1) % 3)


@triton.jit
def clear(slot_start, first_row, num_rows, row_step, columns, inside, stride, rank_stride, WORLD: tl.constexpr):
    """SENTINEL into the columns of every rank's rows of a slot: those from the first one, in steps."""
    sentinels = tl.zeros_like(columns) + SENTINEL
    for row in range(first_row, num_rows, row_step):
        for sender in tl.static_range(WORLD):
            tl.store(slot_start + sender * rank_stride + row * stride + columns, sentinels, mask=inside)


def _stride(hidden: int, dtype: torch.dtype) -> int:
    """A row's words, rounded up such that every row starts at 64 bytes."""
    return -(-hidden * dtype.itemsize // 64) * 16
