"""Weights in fewer bits, int4 in groups along K or fp8 per row, and x W^T with them for 1 to 64 rows of x.

Optionally that is the first half of a gated MLP, as in `gate_up`. Weights are packed once when a model is loaded, in
torch, on any device.

R rows, N outputs, K inputs. Weights become 16-bit floats in registers, between shared memory and the matrix units. fp8
is the skinny GEMM with a conversion and a scale per column. int4 has its own kernel: a tile is one 128-byte line per
row, four matrix products over 64 inputs each, and two scales.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.products import (
    Launch,
    TileConfig,
    Workspace,
    default_config,
    finish,
    multiply,
    result_of,
    weight_rows,
)
from swiftspec.kernels.runtime import FLOATS, check_dtype, check_shape
from swiftspec.kernels.skinny_gemm import launch_skinny_gemm
from swiftspec.kernels.tables import Product, tuned_config

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
    def quantise(cls, weight_NK: Tensor) -> "Int4Weight":
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
    def pack(cls, nibbles_NK: Tensor, scales_NG: Tensor) -> "Int4Weight":
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
    def quantise(cls, weight_NK: Tensor) -> "Fp8Weight":
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


def quantised_gemm_reference(x_RK: Tensor, weight: Int4Weight | Fp8Weight, *, gated: bool = False) -> Tensor:
    """x W^T with the weight dequantised, in fp32, rounded as x; `gated`: silu of its first half times the other."""
    product = x_RK.float() @ weight.dequantise().T
    if gated:
        gate, up = product.chunk(2, dim=-1)
        product = torch.nn.functional.silu(gate) * up
    return product.to(x_RK.dtype)


@triton.jit
def _nibbles(words, NIBBLE: tl.constexpr, dtype: tl.constexpr, UPCAST: tl.constexpr):
    """[N, 32] words to the 64 inputs in one nibble of each half, [N, 64], as -8 to 7.

    A nibble is or-ed into the mantissa of 128 (bf16) or 1024 (fp16), whose last bit is worth 1: no conversion
    instruction, and both halves of a word at a time where the compiler keeps them in one register.
    """
    zero: tl.constexpr = 8.0 if dtype == tl.float32 else 1032.0 if dtype == tl.float16 else 136.0
    pairs = (words >> (4 * NIBBLE)) & 0x000F000F
    if dtype == tl.float32:
        low, high = (pairs & 15).to(tl.float32), (pairs >> 16).to(tl.float32)
    else:
        mantissa: tl.constexpr = 0x64006400 if dtype == tl.float16 else 0x43004300
        pairs |= mantissa
        low = pairs.to(tl.int16).to(dtype, bitcast=True)
        high = (pairs >> 16).to(tl.int16).to(dtype, bitcast=True)
    values = tl.reshape(tl.join(low, high), (words.shape[0], 2 * words.shape[1]))
    if UPCAST:
        values = values.to(tl.float32)
    return values - zero


@triton.jit
def _load_inputs(inputs, keep):
    """x over a block's 256 inputs: a tile of 64 for each nibble."""
    return (
        tl.load(inputs, mask=keep, other=0.0),
        tl.load(inputs + 64, mask=keep, other=0.0),
        tl.load(inputs + 128, mask=keep, other=0.0),
        tl.load(inputs + 192, mask=keep, other=0.0),
    )


@triton.jit
def _add_block(total, line, pair, tiles, SWAP_AB: tl.constexpr, UPCAST: tl.constexpr, dtype: tl.constexpr):
    """total + x weight^T over 256 inputs: two groups of 128, each summed in fp32 and scaled."""
    # From the order in memory, which suits the threads, to that of x: only the layout changes, nothing moves.
    size: tl.constexpr = line.shape[0]
    line = tl.reshape(tl.permute(tl.reshape(line, (size, 4, 8)), (0, 2, 1)), (size, 32))
    for group in tl.static_range(2):
        part = tl.zeros_like(total)
        for nibble in tl.static_range(2 * group, 2 * group + 2):
            part = multiply(tiles[nibble], _nibbles(line, nibble, dtype, UPCAST), part, SWAP_AB, UPCAST)
        scale = ((pair >> (16 * group)) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        total += part * (scale[:, None] if SWAP_AB else scale[None, :])
    return total


@triton.jit
def _int4_gemm_kernel(
    x, words, scales, out, partials, arrivals, num_rows, size_n, num_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
    SWAP_AB: tl.constexpr, GATED: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """out <- x (scale * (nibble - 8))^T; GATED: silu of the first half of the columns times the other."""
    blocks_each = tl.cdiv(num_blocks, SPLIT_K)
    first = tl.program_id(1) * blocks_each
    row = tl.arange(0, BLOCK_M)[:, None]
    keep = row < num_rows
    weight_row = weight_rows(tl.program_id(0), size_n, BLOCK_N, GATED)
    lines = words + weight_row[:, None] * (num_blocks * 32) + tl.arange(0, 32)[None, :]
    pairs = scales + weight_row
    inputs = x + row * (num_blocks * 256) + tl.arange(0, 64)[None, :]

    # The weight does not depend on any earlier kernel.
    any_block = first < num_blocks
    every = any_block & tl.full((BLOCK_N, 1), True, tl.int1)
    first_line = tl.load(lines + first * 32, mask=every, other=0)
    first_pair = tl.load(pairs + first * size_n, mask=any_block, other=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    t0, t1, t2, t3 = _load_inputs(inputs + first * 256, keep & any_block)

    total = tl.zeros((BLOCK_N, BLOCK_M) if SWAP_AB else (BLOCK_M, BLOCK_N), tl.float32)
    for block in tl.range(first + 1, tl.minimum(first + blocks_each, num_blocks), num_stages=STAGES):
        line = tl.load(lines + block * 32)
        pair = tl.load(pairs + block * size_n)
        tiles = _load_inputs(inputs + block * 256, keep)
        total = _add_block(total, line, pair, tiles, SWAP_AB, UPCAST, x.dtype.element_ty)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()  # as late as in the skinny GEMM
    # As in the skinny GEMM: the first tile waits in registers, not in shared memory ahead of all other loads.
    tiles = (
        tl.where(any_block, t0, 0.0),
        tl.where(any_block, t1, 0.0),
        tl.where(any_block, t2, 0.0),
        tl.where(any_block, t3, 0.0),
    )
    total = _add_block(total, first_line, first_pair, tiles, SWAP_AB, UPCAST, x.dtype.element_ty)
    finish(
        total, scales, out, partials, arrivals, num_rows, size_n,
        BLOCK_M, BLOCK_N, SPLIT_K, SWAP_AB, GATED, HAS_SCALE=False,
    )  # fmt: skip  # grouped as the parameters are


def quantised_gemm(
    x_RK: Tensor,
    weight: Int4Weight | Fp8Weight,
    *,
    gated: bool = False,
    config: TileConfig | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """`quantised_gemm_reference`, summed in fp32. Others as in `skinny_gemm`; `out` is (R, N // 2) if `gated`.

    gated: the weight has all gate rows, then all up rows; the result is silu(gate) * up, (R, N // 2). config: `block_k`
    is 256 for int4. By default this GPU's tuned one, or `default_config`.
    """
    check_shape("x_RK", x_RK, (None, None))
    n, k = weight.shape
    is_int4 = isinstance(weight, Int4Weight)
    config = config or tuned_config(x_RK, Product(n, k, "int4" if is_int4 else "fp8", gated))
    config = config or default_config(x_RK.shape[0], n, k, bits=4 if is_int4 else 8)
    if isinstance(weight, Fp8Weight):
        out = result_of(x_RK, (n, k), out, gated=gated, values=weight.values, scales=weight.scales)
        return launch_skinny_gemm(
            x_RK, weight.values, out, config=config, gated=gated, scale_N=weight.scales, workspace=workspace, pdl=pdl
        )
    out = result_of(x_RK, (n, k), out, gated=gated, words=weight.words, scales=weight.scales)
    if config.block_k != BLOCK:
        raise ValueError(f"config.block_k is {config.block_k}; expected {BLOCK}, a packed block of int4")
    launch = Launch.plan(x_RK, n, config, gated=gated, workspace=workspace, pdl=pdl)
    if x_RK.shape[0]:
        _int4_gemm_kernel[launch.grid](
            x_RK,
            weight.words,
            weight.scales.view(torch.int32),
            out,
            launch.partials,
            launch.arrivals,
            x_RK.shape[0],
            n,
            k // BLOCK,
            STAGES=config.num_stages,
            **launch.constants,
        )
    return out
