"""Weights in fewer bits, int4 in groups along K or fp8 per row: their packing and their values.

N outputs (rows), K inputs. Packed once when a model is loaded, in torch, on any device; `quantised_gemm` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, check_dtype, check_shape

__all__ = ["BLOCK", "GROUP", "Fp8Weight", "Int4Weight"]

GROUP = 128  # inputs that share a scale, as in the published GPTQ and AWQ checkpoints
BLOCK = 256  # inputs packed into one 128-byte line of a row
_NIBBLES = (4, 8, 4, 2)  # a block's inputs in order: p, j, c, h


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight:
    """Symmetric int4: weight = scale * (nibble - 8), nibbles 1 to 15, a scale per row and 128 inputs.

    Symmetric, because a zero point would cost every weight another operation or every group another correction, and
    transformers' weights have almost no mean. The scale multiplies the fp32 sum of its group, not the weights: these
    stay small integers, exact in any 16-bit float.

    words   int32 [N, K / 8]. A row's block of 256 inputs is 32 words. Nibble p of half h (bits 16 h to 16 h + 15) of
            word 8 c + j is input 64 p + 8 j + 2 c + h of the block. So one shift and one mask of a word give two
            neighbours along K, adjacent like the 16-bit operands of a matrix instruction; the p-th nibbles of the
            32 words are 64 consecutive inputs; and 8 consecutive words (c) are the part of such an operand that one
            thread holds, from 16-byte loads.
    scales  fp16 [K / 256, N, 2]: one 4-byte load has both groups of a block
    """

    words: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        check_dtype((torch.int32,), words=self.words)
        check_dtype((torch.float16,), scales=self.scales)
        check_shape("words", self.words, (None, None))
        n, k = self.shape
        if k % BLOCK:
            raise ValueError(f"words has shape {tuple(self.words.shape)}; supported: K / 8 in steps of {BLOCK // 8}")
        check_shape("scales", self.scales, (k // BLOCK, n, 2), why="blocks, N, groups of a block")

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.words.shape[0], self.words.shape[1] * 8

    @classmethod
    def quantise(cls, weight_NK: Tensor) -> Int4Weight:
        """Round to nearest, the largest weight of a group to 7 or -7. ValueError unless 256 divides K."""
        n, k = _check_weight(weight_NK)
        if k % BLOCK:
            raise ValueError(f"weight_NK has shape {(n, k)}; supported: K in steps of {BLOCK}")
        groups = weight_NK.float().view(n, k // GROUP, GROUP)
        # A subnormal scale would lose bits; a group of zeros may have any scale.
        scales = (groups.abs().amax(-1) / 7).clamp(min=2.0**-14).half()
        nibbles = (groups / scales.float()[..., None]).round().clamp(-7, 7).int() + 8
        return cls.pack(nibbles.view(n, k), scales)

    @classmethod
    def pack(cls, nibbles_NK: Tensor, scales_NG: Tensor) -> Int4Weight:
        """From nibbles 0 to 15 (8 is zero) and fp16 scales of groups of 128, as checkpoints have them."""
        n, k = nibbles_NK.shape
        nibbles = nibbles_NK.view(n, k // BLOCK, *_NIBBLES)
        # In int64, as the highest nibble reaches an int32's sign.
        words = (nibbles.long() << _shifts(nibbles.device)).sum((2, 5)).transpose(2, 3)
        words = torch.where(words >= 1 << 31, words - (1 << 32), words).int().reshape(n, k // 8)
        scales = scales_NG.view(n, k // BLOCK, 2).transpose(0, 1)
        return cls(words.contiguous(), scales.contiguous())

    def dequantise(self) -> Tensor:
        """fp32 (N, K): the values that `quantised_gemm` multiplies with."""
        n, k = self.shape
        words = self.words.view(n, k // BLOCK, 1, 4, 8, 1).transpose(3, 4)
        nibbles = (words >> _shifts(self.words.device)) & 15
        scales = self.scales.transpose(0, 1).reshape(n, k // GROUP, 1).float()
        return ((nibbles.reshape(n, k // GROUP, GROUP) - 8) * scales).view(n, k)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight:
    """e4m3 with a scale per row: weight = scale * value. Any K; 16 must divide it for wide loads.

    values  float8_e4m3fn [N, K]
    scales  fp32 [N]
    """

    values: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        check_dtype((torch.float8_e4m3fn,), values=self.values)
        check_dtype((torch.float32,), scales=self.scales)
        check_shape("values", self.values, (None, None))
        check_shape("scales", self.scales, (self.values.shape[0],), why="N of values")

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.values.shape[0], self.values.shape[1]

    @classmethod
    def quantise(cls, weight_NK: Tensor) -> Fp8Weight:
        """Round to nearest, the largest weight of a row to 448 or -448."""
        _check_weight(weight_NK)
        weight = weight_NK.float()
        largest = torch.finfo(torch.float8_e4m3fn).max
        # A row of zeros may have any scale but zero.
        scales = (weight.abs().amax(-1) / largest).clamp(min=torch.finfo(torch.float32).tiny)
        return cls((weight / scales[:, None]).clamp(-largest, largest).to(torch.float8_e4m3fn), scales)

    def dequantise(self) -> Tensor:
        """fp32 (N, K): the values that `quantised_gemm` multiplies with."""
        return self.values.float() * self.scales[:, None]


def _check_weight(weight_NK: Tensor) -> tuple[int, int]:
    check_shape("weight_NK", weight_NK, (None, None))
    check_dtype(FLOATS, weight_NK=weight_NK)
    n, k = weight_NK.shape
    if not n * k:
        raise ValueError(f"weight_NK has shape {(n, k)}; supported: N and K from 1")
    return n, k


def _shifts(device: torch.device) -> Tensor:
    """Bits below a nibble, for (p, j, c, h)."""
    nibble, half = torch.arange(4, device=device), torch.arange(2, device=device)
    return (4 * nibble[:, None] + 16 * half)[:, None, None, :].int()
