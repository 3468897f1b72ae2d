"""Buffers of ranks that are processes on a CPU."""

import torch
from torch import Tensor


def shared_buffers(world_size: int, num_words: int, *, fill: int) -> list[Tensor]:
    """Filled buffers in shared memory, to be sent to `world_size` processes that `map_peers` there."""
    return [torch.full((num_words,), fill, dtype=torch.int32).share_memory_() for _ in range(world_size)]
