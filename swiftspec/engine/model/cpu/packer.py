"""Packs matrices for the CPU kernels: in their own bytes where that is exact, in the order that the kernels read."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.weights.loader import SharedWeights
from swiftspec.kernels.cpu_library import Adapter, Library, Matrix

__all__ = ["Format", "HugePages", "Packer", "in_panels"]

_PANEL = 32  # as in linear.hpp
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


class Format(IntEnum):
    """The numbers of linear.hpp."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    INT8 = 3

    @classmethod
    def of(cls, dtype: torch.dtype) -> Format:
        """The format of numbers of this dtype."""
        return _FORMATS[dtype]


_FORMATS = {
    torch.float32: Format.FLOAT32,
    torch.bfloat16: Format.BFLOAT16,
    torch.float16: Format.FLOAT16,
    torch.int8: Format.INT8,
}
_LARGEST_INT8 = 127


@dataclass(slots=True, kw_only=True)
class Packer:
    """Packs the weights of one or several models, and owns the result. Equal weights are packed once.

    quantised: matrices in int8 with a scale for each output, which changes the logits; else they are exact.
    num_bytes: of what was packed so far.
    """

    library: Library
    quantised: bool
    shared: SharedWeights
    num_bytes: int = 0
    _memory: HugePages = field(default_factory=HugePages)
    _kept: list[object] = field(default_factory=list)

    def vector(self, values: Tensor) -> int:
        """Address of its numbers in fp32."""
        return self.shared.once("vector", [values], lambda: self._held(values.float())).data_ptr()

    def plain(self, weight: Tensor) -> Tensor:
        """A matrix in the fewest bytes, in its own order."""
        return self.shared.once("plain", [weight], lambda: self._held(self._narrowest(weight)))

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> Matrix:
        """W [out, in], without an adapter."""
        made = self.shared.once("matrix", [weight, bias], lambda: self._packed(weight, bias, quantised=self.quantised))
        return Matrix.from_buffer_copy(made)

    def router(self, weight: Tensor) -> Matrix:
        """Weights [experts, in], which are never rounded: a row would be computed by other experts."""
        made = self.shared.once("router", [weight], lambda: self._packed(weight, None, quantised=False))
        return Matrix.from_buffer_copy(made)

    def adapter(self, down: Tensor, up: Tensor) -> int:
        """Address of an adapter, which is never rounded: down [rank, in], up [out, rank]."""
        made = Adapter(down=self._packed(down, None, quantised=False), up=self._packed(up, None, quantised=False))
        self._kept.append(made)
        return ctypes.addressof(made)

    def _held(self, values: Tensor) -> Tensor:
        values = values.contiguous()
        self.num_bytes += values.nbytes
        self._kept.append(values)
        return values

    def _packed(self, weight: Tensor, bias: Tensor | None, *, quantised: bool) -> Matrix:
        stored, scales = _quantised(weight) if quantised else (self._narrowest(weight), None)
        ordered = in_panels(stored).transpose(1, 2)[..., self._order(stored.dtype)]
        panels = self._held(self._memory.tensor(ordered.shape, ordered.dtype).copy_(ordered))
        matrix = Matrix(panels=panels.data_ptr(), num_outputs=weight.shape[0], num_inputs=weight.shape[1])
        matrix.format = Format.of(stored.dtype)
        if scales is not None:
            matrix.scales = self._held(scales.float()).data_ptr()
        if bias is not None:
            matrix.bias = self._held(bias.float()).data_ptr()
        return matrix

    def _narrowest(self, weight: Tensor) -> Tensor:
        """The same numbers in the fewest bytes that the kernels read."""
        candidates = [torch.bfloat16, *([torch.float16] if self.library.has_float16 else [])]
        if weight.dtype in candidates:
            return weight
        weight = weight.float()
        for dtype in candidates:
            narrow = weight.to(dtype)
            if torch.equal(narrow.float(), weight):
                return narrow
        return weight

    def _order(self, dtype: torch.dtype) -> Tensor:
        """Output of each place of a panel. Two vectors of bfloat16 share their words, low and high halves."""
        order = torch.arange(_PANEL)
        if dtype != torch.bfloat16:
            return order
        return order.view(-1, 2, self.library.lanes).transpose(1, 2).flatten()


def in_panels(weight: Tensor) -> Tensor:
    """The rows of a matrix, padded with zeros, in groups of 32: [panels, 32, in]."""
    padded: Tensor = F.pad(weight, (0, 0, 0, -weight.shape[0] % _PANEL))
    return padded.view(-1, _PANEL, weight.shape[1])


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded to int8, and the scales [out] that undo it."""
    weight = weight.float()
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST_INT8
    return (weight / scales[:, None]).round().to(torch.int8), scales
