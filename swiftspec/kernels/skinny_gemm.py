"""x W^T for 1 to 64 rows of x: a stream of the weight at the memory's bandwidth.

R rows, N outputs, K inputs. Each program multiplies BLOCK_N rows of the weight, a tile at a time, while the next tiles
load. The first tile is requested before waiting for the predecessor's output (PDL), so that the memory latency overlaps
the predecessor's tail. That tile waits in registers and is added last: multiplying it first would wait for it before
the other tiles are requested.
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
    load_tile,
    multiply,
    weight_rows,
)
from swiftspec.kernels.runtime import check_dtype, check_shape

__all__ = ["launch_skinny_gemm", "skinny_gemm", "skinny_gemm_reference"]


def skinny_gemm_reference(x_RK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x W^T + bias in fp32, rounded as x; (R, N)."""
    product = x_RK.float() @ weight_NK.float().T
    return (product if bias_N is None else product + bias_N.float()).to(x_RK.dtype)


@triton.jit
def _skinny_gemm_kernel(
    x,
    weight,
    scale,
    bias,
    out,
    partials,
    arrivals,
    num_rows,
    size_n,
    size_k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN_K: tl.constexpr,
    SWAP_AB: tl.constexpr,
    GATED: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):
    """out <- x weight^T, scaled per column, plus bias; GATED: silu of the first half of the columns times the other."""
    num_tiles = tl.cdiv(size_k, BLOCK_K)
    tiles_each = tl.cdiv(num_tiles, SPLIT_K)
    first = tl.program_id(1) * tiles_each
    k = tl.arange(0, BLOCK_K)[None, :]
    row = tl.arange(0, BLOCK_M)[:, None]
    every = tl.full((BLOCK_N, 1), True, tl.int1)
    weights = weight + weight_rows(tl.program_id(0), size_n, BLOCK_N, GATED)[:, None] * size_k + k
    inputs = x + row * size_k + k

    # The weight does not depend on any earlier kernel.
    first_weight = load_tile(weights, first * BLOCK_K, every, size_k, BLOCK_K, EVEN_K)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    first_input = load_tile(inputs, first * BLOCK_K, row < num_rows, size_k, BLOCK_K, EVEN_K)

    total = tl.zeros((BLOCK_N, BLOCK_M) if SWAP_AB else (BLOCK_M, BLOCK_N), tl.float32)
    for tile in tl.range(first + 1, tl.minimum(first + tiles_each, num_tiles), num_stages=STAGES):
        tile_weight = load_tile(weights, tile * BLOCK_K, every, size_k, BLOCK_K, EVEN_K)
        tile_input = load_tile(inputs, tile * BLOCK_K, row < num_rows, size_k, BLOCK_K, EVEN_K)
        total = multiply(tile_input, tile_weight.to(x.dtype.element_ty), total, SWAP_AB, UPCAST)
    # Not a no-op to the compiler, which otherwise stages the first tile in shared memory right where it is loaded, and
    # so waits for it there: before all other loads, and before the predecessor's end.
    first_input = tl.where(first < num_tiles, first_input, 0.0)
    first_weight = tl.where(first < num_tiles, first_weight, 0.0)
    total = multiply(first_input, first_weight.to(x.dtype.element_ty), total, SWAP_AB, UPCAST)

    finish(
        total, scale, bias, out, partials, arrivals, num_rows, size_n,
        BLOCK_M, BLOCK_N, SPLIT_K, SWAP_AB, GATED, HAS_SCALE, HAS_BIAS,
    )  # fmt: skip


def launch_skinny_gemm(
    x_RK: Tensor,
    weight_NK: Tensor,
    out: Tensor,
    *,
    config: TileConfig,
    gated: bool = False,
    scale_N: Tensor | None = None,
    bias_N: Tensor | None = None,
    workspace: Workspace | None,
    pdl: bool,
) -> Tensor:
    """Launch on checked arguments; for the wrappers in this and its sibling files."""
    n, k = weight_NK.shape
    launch = Launch.plan(x_RK, n, config, gated=gated, workspace=workspace, pdl=pdl)
    if x_RK.shape[0]:
        _skinny_gemm_kernel[launch.grid](
            x_RK,
            weight_NK,
            x_RK if scale_N is None else scale_N,
            x_RK if bias_N is None else bias_N,
            out,
            launch.partials,
            launch.arrivals,
            x_RK.shape[0],
            n,
            k,
            BLOCK_K=config.block_k,
            STAGES=config.num_stages,
            EVEN_K=k % config.block_k == 0 and triton.cdiv(k, config.block_k) % config.split_k == 0,
            HAS_SCALE=scale_N is not None,
            HAS_BIAS=bias_N is not None,
            **launch.constants,
        )
    return out


def skinny_gemm(
    x_RK: Tensor,
    weight_NK: Tensor,
    *,
    config: TileConfig | None = None,
    bias_N: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """`skinny_gemm_reference`, summed in fp32.

    Parameters
    ----------
    x_RK : Tensor
        At most 64 rows; fp32, fp16 or bf16, contiguous.
    weight_NK : Tensor
        x's dtype, contiguous.
    config : TileConfig, optional
        By default `default_config`, which was not measured.
    bias_N : Tensor, optional
        x's dtype.
    out : Tensor, optional
        Buffer for the result, (R, N), of x's dtype.
    workspace : Workspace, optional
        For a split K; by default the current stream's.
    pdl : bool
        Programmatic dependent launch: weights are read while the predecessor ends. Only on CUDA, sm_90 and newer.

    Raises
    ------
    ValueError
        For a shape, dtype, device, layout or tiling that is not supported, or a workspace that is too small.
    """
    check_shape("weight_NK", weight_NK, (None, None))
    check_shape("x_RK", x_RK, (None, None))
    n, k = weight_NK.shape
    if out is None:
        out = torch.empty(x_RK.shape[0], n, dtype=x_RK.dtype, device=x_RK.device)
    tensors = {"weight_NK": weight_NK}
    if bias_N is not None:
        check_shape("bias_N", bias_N, (n,), why="N of weight_NK")
        tensors["bias_N"] = bias_N
    check_product(x_RK, (n, k), out, n, **tensors)
    for name, tensor in tensors.items():
        check_dtype(name, tensor, (x_RK.dtype,))
    config = config or default_config(x_RK.shape[0], n, k)
    return launch_skinny_gemm(x_RK, weight_NK, out, config=config, bias_N=bias_N, workspace=workspace, pdl=pdl)
