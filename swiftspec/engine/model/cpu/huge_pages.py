"""Memory in huge pages: a forward reads all weights, and every page of 4 KB that it reads must be looked up."""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

__all__ = ["HugePages"]

_CHUNK_BYTES = 32 << 20
_ALIGNMENT = 64  # a cache line


class HugePages:
    """Hands out zeroed tensors, which keep their memory alive. In ordinary pages where the kernel has no huge ones."""

    def __init__(self) -> None:
        self._chunk = memoryview(b"")
        self._used = 0

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._used + num_bytes > len(self._chunk):
            self._chunk, self._used = _mapped(max(num_bytes, _CHUNK_BYTES)), 0
        start = self._used
        self._used = -(-(start + num_bytes) // _ALIGNMENT) * _ALIGNMENT
        return torch.frombuffer(self._chunk[start : start + num_bytes], dtype=dtype).view(*shape)


def _mapped(num_bytes: int) -> memoryview:
    area = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            area.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(area)
