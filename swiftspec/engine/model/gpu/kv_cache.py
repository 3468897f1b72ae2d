"""KV cache of the GPU decoder: its buffers never move, and the slots to keep are sent to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftspec.engine.model.gpu.cuda_graph import GraphPool, Replay
from swiftspec.engine.model.gpu.input_batch import CAPTURE_SIZES, InputBatch, SlotMoves
from swiftspec.engine.model.gpu.layers import ForwardState
from swiftspec.engine.model.gpu.ops import Ops
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind

__all__ = ["GpuKVCache"]

_WORD_BITS = 32


class GpuKVCache(KVCache):
    """Keys and values of one sequence on a device, with extra slots for rows that pad a forward.

    The host knows the lengths and sends them to the device with every step. Nobody waits for a move: it precedes the
    next forward on the same stream and is part of that forward's latency.

    tree_slots: the most tree nodes, a multiple of 32.
    workspace: workspace of the attention, the same for all layers.
    rows: inputs of the next forward.
    replays: forwards by kind and number of rows: a captured graph holds the addresses of one cache.
    candidates: captured top-k of these forwards, also by number of candidates.
    """

    def __init__(
        self, spec: ModelSpec, *, capacity: int, tree_slots: int, dtype: torch.dtype, pool: GraphPool, ops: Ops
    ) -> None:
        limit = ops.most_tree_slots
        if tree_slots < 1 or (limit is not None and tree_slots > limit):
            expected = "at least one" if limit is None else f"1 to {limit}, which the kernels' masks hold"
            raise ValueError(f"tree_slots is {tree_slots}; expected {expected}")
        num_words = -(-tree_slots // _WORD_BITS)
        self.tree_slots = num_words * _WORD_BITS
        # Zeros, in spare slots too: masks multiply, so a hidden value must not be a NaN.
        spare = max(self.tree_slots, CAPTURE_SIZES[-1])
        super().__init__(spec, capacity=capacity, dtype=dtype, spare=spare, device=pool.device)
        self.workspace = ops.tree_attention_workspace(CAPTURE_SIZES[-1], spec.num_heads, self.data[0, 0])
        self.rows = InputBatch(num_words=num_words, device=pool.device)
        self.replays: dict[tuple[ForwardKind, int], Replay[ForwardState]] = {}
        self.candidates: dict[tuple[ForwardKind, int, int], Replay[Tensor]] = {}
        moves = SlotMoves(num_slots=self.tree_slots, device=pool.device)
        self._moves = moves
        self._mover = Replay(
            lambda: ops.keep_slots(self.data, moves.slots_K, moves.lengths_2, moves.num_verified), pool
        )
        self._move((), 0)  # captured while there is nothing to move, because capturing runs it more than once

    def require_tree_room(self, num_rows: int) -> None:
        """ValueError unless `num_rows` more slots are free, and the tree may grow by as many."""
        super().require_tree_room(num_rows)
        if self.tree_length + num_rows > self.tree_slots:
            raise ValueError(
                f"cache has {self.tree_slots} tree slots; {self.tree_length} in use and {num_rows} more do not fit"
            )

    def _move(self, slots: Sequence[int], first: int) -> None:
        self._moves.send(
            [*range(first), *slots],
            prefix_length=self.prefix_length,
            tree_length=self.tree_length,
            num_verified=0,  # the next forward sends the length of the prefix
        )
        self._mover()
