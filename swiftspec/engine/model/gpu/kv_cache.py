"""KV cache of the GPU decoder: buffers that never move, and the inputs of a step, each sent to the device in one piece.

B rows of the largest capture size, W words of ancestors per row, K tree slots.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swiftspec.devices.local import TREE_SLOTS
from swiftspec.engine.model.gpu.cuda_graph import GraphPool, Replay
from swiftspec.engine.model.gpu.layers import ForwardState
from swiftspec.engine.model.gpu.ops import Ops
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind

CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64)
_WORD_BYTES = 4
_ALIGNED = 4  # int32 numbers: kernels load 16 bytes at once from the start of a view

Words = np.ndarray[Any, np.dtype[np.int32]]
_WORD_BITS = 32


def capture_size_of(num_rows: int) -> int:
    """The smallest capture size that holds `num_rows`. ValueError beyond the largest."""
    for capture_size in CAPTURE_SIZES:
        if num_rows <= capture_size:
            return capture_size
    raise ValueError(f"forward has {num_rows} rows; expected at most {CAPTURE_SIZES[-1]} on static buffers")


def ancestor_words(ancestors: Sequence[int], tree_length: int, num_words: int) -> Words:
    """Tree slots that each row sees, int32 [rows, W]: bit s % 32 of word s // 32, the row's own slot included."""
    packed = bytearray()
    for row, bits in enumerate(ancestors):
        packed += (bits | 1 << (tree_length + row)).to_bytes(num_words * _WORD_BYTES, "little")
    return np.frombuffer(packed, dtype="<i4").reshape(len(ancestors), num_words)


def packed(logprobs_RK: Tensor, tokens_RK: Tensor) -> Tensor:
    """int32 [2, R, K] of fp32 and int32: one copy to the host, since each copy waits for the device."""
    return torch.stack([tokens_RK, logprobs_RK.view(torch.int32)])


def unpacked(candidates: Tensor) -> tuple[list[list[int]], list[list[float]]]:
    tokens, logprobs = candidates.cpu().unbind(0)
    return tokens.tolist(), logprobs.view(torch.float32).tolist()


class _Staging:
    """An array of int32 on the host and its copy on the device, in named parts."""

    def __init__(self, sizes: dict[str, int], device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        starts, total = {}, 0
        for name, size in sizes.items():
            starts[name], total = total, total + -(-size // _ALIGNED) * _ALIGNED
        self._host = torch.zeros(total, dtype=torch.int32, pin_memory=self._cuda)
        self._device = torch.zeros(total, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if self._cuda else None
        array = self._host.numpy()
        self._parts = {name: array[start : start + sizes[name]] for name, start in starts.items()}
        self._views = {name: self._device[start : start + sizes[name]] for name, start in starts.items()}

    def _writable(self) -> dict[str, Words]:
        """The host's parts, once the last copy from them is done; only this waits for it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._parts

    def _send(self) -> None:
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class InputBatch(_Staging):
    """The rows of a forward, filled up to a capture size with copies of the last one.

    A copy's keys and values go to slots after the real rows', where no row looks; it sees what its original sees, so
    that its softmax is never over nothing.
    """

    def __init__(self, *, num_words: int, device: torch.device) -> None:
        most = CAPTURE_SIZES[-1]
        self.num_words = num_words
        super().__init__({"lengths": 2, "tokens": most, "positions": most, "ancestors": most * num_words}, device)
        self.lengths_2: Tensor = self._views["lengths"]
        self._ancestors = self._parts["ancestors"].reshape(most, num_words)
        self._ancestors_view = self._views["ancestors"].view(most, num_words)

    def send(
        self, tokens: Sequence[int], positions: Sequence[int], words: Words, *, prefix_length: int, tree_length: int
    ) -> None:
        """Send to the device; at most as many rows as the largest capture size."""
        parts, num_rows = self._writable(), len(tokens)
        parts["lengths"][:] = prefix_length, tree_length
        for name, values in (("tokens", tokens), ("positions", positions)):
            parts[name][:num_rows] = values
            parts[name][num_rows:] = values[-1]
        self._ancestors[:num_rows] = words
        self._ancestors[num_rows:] = words[-1]
        self._send()

    def on_device(self, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [num_rows], positions [num_rows] and ancestors [num_rows, W], int32."""
        return self._views["tokens"][:num_rows], self._views["positions"][:num_rows], self._ancestors_view[:num_rows]


class SlotMoves(_Staging):
    """Tree slots to keep."""

    def __init__(self, *, num_slots: int, device: torch.device) -> None:
        super().__init__({"prefix": 1, "slots": num_slots}, device)
        self.prefix_1: Tensor = self._views["prefix"]
        self.slots_K: Tensor = self._views["slots"]

    def send(self, slots: Sequence[int], *, prefix_length: int) -> None:
        """Send to the device, padded with -1."""
        parts = self._writable()
        parts["prefix"][:] = prefix_length
        parts["slots"][: len(slots)] = slots
        parts["slots"][len(slots) :] = -1
        self._send()


class GpuKVCache(KVCache):
    """Keys and values of one sequence on a device, with extra slots for rows that pad a forward.

    The host knows the lengths and sends them to the device with every step. Nobody waits for a move: it precedes the
    next forward on the same stream and is part of that forward's latency.

    tree_slots: the most tree nodes, a multiple of 32. rows: inputs of the next forward.
    workspace: of the attention, the same for all layers.
    replays: forwards by kind and number of rows: a captured graph holds the addresses of one cache.
    candidates: captured top-k of these forwards, also by number of candidates.
    """

    def __init__(
        self, spec: ModelSpec, *, capacity: int, tree_slots: int, dtype: torch.dtype, pool: GraphPool, ops: Ops
    ) -> None:
        most = TREE_SLOTS["cuda"]
        if not 1 <= tree_slots <= most:
            raise ValueError(f"tree_slots is {tree_slots}; expected 1 to {most}, which the kernels' masks hold")
        num_words = -(-tree_slots // _WORD_BITS)
        # Zeros, in spare slots too: masks multiply, so a hidden value must not be a NaN.
        spare = max(num_words * _WORD_BITS, CAPTURE_SIZES[-1])
        super().__init__(spec, capacity=capacity, dtype=dtype, spare=spare, device=pool.device)
        self.tree_slots = num_words * _WORD_BITS
        self.workspace = ops.tree_attention_workspace(CAPTURE_SIZES[-1], spec.num_heads, self.data[0, 0])
        self.rows = InputBatch(num_words=num_words, device=pool.device)
        self.replays: dict[tuple[ForwardKind, int], Replay[ForwardState]] = {}
        self.candidates: dict[tuple[ForwardKind, int, int], Replay[Tensor]] = {}
        self._moves = moves = SlotMoves(num_slots=self.tree_slots, device=pool.device)
        self._mover = Replay(lambda: ops.keep_slots(self.data, moves.slots_K, moves.prefix_1), pool)
        self._move((), 0)  # captured while there is nothing to move, because capturing runs it more than once

    def _move(self, slots: Sequence[int], first: int) -> None:
        self._moves.send([*range(first), *slots], prefix_length=self.prefix_length)
        self._mover()
