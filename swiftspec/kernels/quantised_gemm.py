"""x W^T for weights in int4 or fp8, 1 to 64 rows of x; optionally the first half of a gated MLP, as in `gate_up`.

R rows, N outputs, K inputs. Weights become 16-bit floats in registers, between shared memory and the matrix units. fp8
is the skinny GEMM with a conversion and a scale per column. int4 has its own kernel: a tile is one 128-byte line per
row, four matrix products over 64 inputs each, and two scales.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.products import (
    Launch,
    TileConfig,
    Workspace,
    check_product,
    default_config,
    finish,
    multiply,
    weight_rows,
)
from swiftspec.kernels.quantised import BLOCK, Fp8Weight, Int4Weight
from swiftspec.kernels.runtime import check_shape
from swiftspec.kernels.skinny_gemm import check_gated, launch_skinny_gemm
from swiftspec.kernels.tables import Product, tuned_config

__all__ = ["quantised_gemm", "quantised_gemm_reference"]


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
    x,
    words,
    scales,
    out,
    partials,
    arrivals,
    num_rows,
    size_n,
    num_blocks,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
    SWAP_AB: tl.constexpr,
    GATED: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
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
    )  # fmt: skip


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
    num_outputs = n
    if gated:
        check_gated((n, k))
        num_outputs = n // 2
    if out is None:
        out = torch.empty(x_RK.shape[0], num_outputs, dtype=x_RK.dtype, device=x_RK.device)
    is_int4 = isinstance(weight, Int4Weight)
    config = config or tuned_config(x_RK, Product(n, k, "int4" if is_int4 else "fp8", gated))
    config = config or default_config(x_RK.shape[0], n, k, bits=4 if is_int4 else 8)
    if isinstance(weight, Fp8Weight):
        check_product(x_RK, (n, k), out, num_outputs, values=weight.values, scales=weight.scales)
        return launch_skinny_gemm(
            x_RK, weight.values, out, config=config, gated=gated, scale_N=weight.scales, workspace=workspace, pdl=pdl
        )
    check_product(x_RK, (n, k), out, num_outputs, words=weight.words, scales=weight.scales)
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
