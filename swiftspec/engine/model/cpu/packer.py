"""Packs matrices for the CPU kernels, in the order that they read: in their own bytes if that is exact, or rounded."""

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

_PANEL = 32  # as in formats.hpp
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
    """The numbers of formats.hpp. BFLOAT16_ROUNDED is stored as BFLOAT16; rows are rounded, too."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    INT8 = 3
    BFLOAT16_ROUNDED = 4

    @classmethod
    def exact(cls, dtype: torch.dtype) -> Format:
        """The format of numbers of this dtype, multiplied in fp32."""
        return _EXACT[dtype]

    @property
    def num_inputs(self) -> int:
        """Inputs of an output that are neighbours in a panel."""
        return {Format.BFLOAT16: 2, Format.BFLOAT16_ROUNDED: 2, Format.INT8: 4}.get(self, 1)


_EXACT = {
    torch.float32: Format.FLOAT32,
    torch.bfloat16: Format.BFLOAT16,
    torch.float16: Format.FLOAT16,
}
_LARGEST_INT8, _OFFSET_INT8 = 127, 128


@dataclass(slots=True, kw_only=True)
class Packer:
    """Packs the weights of one or several models, and owns the result. Equal weights are packed once.

    dtype: float32: matrices are exact; bfloat16: rounded, and so are rows if this processor multiplies bfloat16; int8:
    rounded with a scale for each output, and rows with one for 128 inputs. num_bytes: of what was packed so far.
    """

    library: Library
    dtype: torch.dtype
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

    @property
    def rounds_rows(self) -> bool:
        return self.dtype == torch.int8 or (self.dtype == torch.bfloat16 and self.library.has_bfloat16_products)

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> Matrix:
        """W [out, in], without an adapter."""
        made = self.shared.once("matrix", [weight, bias], lambda: self._packed(weight, bias, self.dtype))
        return Matrix.from_buffer_copy(made)

    def router(self, weight: Tensor) -> Matrix:
        """Weights [experts, in], which are never rounded: a row would be computed by other experts."""
        made = self.shared.once("router", [weight], lambda: self._packed(weight))
        return Matrix.from_buffer_copy(made)

    def adapter(self, down: Tensor, up: Tensor) -> int:
        """Address of an adapter, which is never rounded: down [rank, in], up [out, rank]."""
        made = Adapter(down=self._packed(down), up=self._packed(up))
        self._kept.append(made)
        return ctypes.addressof(made)

    def _held(self, values: Tensor) -> Tensor:
        values = values.contiguous()
        self.num_bytes += values.nbytes
        self._kept.append(values)
        return values

    def _packed(self, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Matrix:
        stored, scales, kind = self._stored(weight, dtype)
        panels = in_panels(F.pad(stored, (0, -stored.shape[1] % kind.num_inputs)))
        ordered = panels.unflatten(2, (-1, kind.num_inputs)).transpose(1, 2)
        held = self._held(self._memory.tensor(ordered.shape, ordered.dtype).copy_(ordered))
        matrix = Matrix(panels=held.data_ptr(), num_outputs=weight.shape[0], num_inputs=weight.shape[1], format=kind)
        if scales is not None:
            matrix.scales = self._held(scales.float()).data_ptr()
        if bias is not None:
            matrix.bias = self._held(bias.float()).data_ptr()
        return matrix

    def _stored(self, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Format]:
        """The numbers of a matrix as they are stored, their scales [out] if they have any, and their format."""
        if dtype == torch.int8:
            return *_quantised(weight), Format.INT8
        if dtype == torch.bfloat16:
            weight = weight.bfloat16()
            if self.library.has_bfloat16_products:
                return weight, None, Format.BFLOAT16_ROUNDED
        narrow = self._narrowest(weight)
        return narrow, None, Format.exact(narrow.dtype)

    def _narrowest(self, weight: Tensor) -> Tensor:
        """The same numbers in the fewest bytes that the kernels read."""
        candidates = [torch.float16] if self.library.has_float16 else []
        if weight.shape[-1] % 2 == 0:  # two inputs share a word
            candidates.insert(0, torch.bfloat16)
        if weight.dtype in candidates:
            return weight
        weight = weight.float()
        for dtype in candidates:
            narrow = weight.to(dtype)
            if torch.equal(narrow.float(), weight):
                return narrow
        return weight


def in_panels(weight: Tensor) -> Tensor:
    """The rows of a matrix, padded with zeros, in groups of 32: [panels, 32, in]."""
    padded: Tensor = F.pad(weight, (0, 0, 0, -weight.shape[0] % _PANEL))
    return padded.view(-1, _PANEL, weight.shape[1])


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded to int8, plus 128, and the scales [out] that undo it."""
    weight = weight.float()
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST_INT8
    return (weight / scales[:, None]).round().add(_OFFSET_INT8).to(torch.uint8), scales
