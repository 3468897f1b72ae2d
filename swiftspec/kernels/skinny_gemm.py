"""x W^T for 1 to 64 rows of x: a stream of the weight at the memory's bandwidth. Plain, by the faster of two, or gated.

`linear` takes cuBLAS (torch.mm) where that was measured to be faster. `gate_up` is the first half of a gated MLP in one
launch, silu(x G^T) * (x U^T): gate and up rows of the weight alternate within a tile, so that one stream of weights,
one dot and one accumulator serve both, and the intermediate that a separate SiLU would write and read never leaves the
program.

R rows, N outputs, K inputs. Each program multiplies BLOCK_N rows of the weight, a tile at a time, while the next tiles
load. The first tile is requested before waiting for the predecessor's output (PDL), so that the memory latency overlaps
the predecessor's tail. That tile waits in registers and is added last: multiplying it first would wait for it before
the other tiles are requested.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from swiftspec.kernels.products import (
    MAX_ROWS,
    Launch,
    TileConfig,
    Workspace,
    default_config,
    finish,
    load_tile,
    multiply,
    result_of,
    weight_rows,
)
from swiftspec.kernels.runtime import FLOATS, check_dtype, check_layout, check_shape
from swiftspec.kernels.tables import Product, tuned_config


def skinny_gemm_reference(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """x W^T in fp32, rounded as x; (R, N)."""
    return (x_RK.float() @ weight_NK.float().T).to(x_RK.dtype)


def gate_up_reference(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """silu(x gate^T) * (x up^T) in fp32, rounded once, as x; (R, N // 2)."""
    gate, up = (x_RK.float() @ weight_NK.float().T).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x_RK.dtype)


@triton.jit
def _skinny_gemm_kernel(
    x, weight, scale, out, partials, arrivals, num_rows, size_n, size_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr, EVEN_K: tl.constexpr, SWAP_AB: tl.constexpr, GATED: tl.constexpr,
    HAS_SCALE: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """out <- x weight^T, scaled per column; GATED: silu of the first half of the columns times the other."""
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
    first_input = load_tile(inputs, first * BLOCK_K, row < num_rows, size_k, BLOCK_K, EVEN_K)

    total = tl.zeros((BLOCK_N, BLOCK_M) if SWAP_AB else (BLOCK_M, BLOCK_N), tl.float32)
    for tile in tl.range(first + 1, tl.minimum(first + tiles_each, num_tiles), num_stages=STAGES):
        tile_weight = load_tile(weights, tile * BLOCK_K, every, size_k, BLOCK_K, EVEN_K)
        tile_input = load_tile(inputs, tile * BLOCK_K, row < num_rows, size_k, BLOCK_K, EVEN_K)
        total = multiply(tile_input, tile_weight.to(x.dtype.element_ty), total, SWAP_AB, UPCAST)
    if PDL:
        # Not earlier: kernels that start before this one has asked for all its weights compete with it for the memory.
        # On an H100 that was 9 % of an 8B model's forward in fp8, 4 % in int4, and nothing in bf16.
        tl.extra.cuda.gdc_launch_dependents()
    # Not a no-op to the compiler, which otherwise stages the first tile in shared memory right where it is loaded, and
    # so waits for it there: before all other loads, and before the predecessor's end.
    first_input = tl.where(first < num_tiles, first_input, 0.0)
    first_weight = tl.where(first < num_tiles, first_weight, 0.0)
    total = multiply(first_input, first_weight.to(x.dtype.element_ty), total, SWAP_AB, UPCAST)

    finish(
        total, scale, out, partials, arrivals, num_rows, size_n,
        BLOCK_M, BLOCK_N, SPLIT_K, SWAP_AB, GATED, HAS_SCALE,
    )  # fmt: skip  # grouped as the parameters are


def launch_skinny_gemm(
    x_RK: Tensor,
    weight_NK: Tensor,
    out: Tensor,
    *,
    config: TileConfig,
    gated: bool = False,
    scale_N: Tensor | None = None,
    workspace: Workspace | None = None,
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
            **launch.constants,
        )
    return out


def skinny_gemm(
    x_RK: Tensor,
    weight_NK: Tensor,
    *,
    config: TileConfig | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """`skinny_gemm_reference`, summed in fp32. `pdl` and errors: see `runtime`.

    x_RK: at most 64 rows; fp32, fp16 or bf16, contiguous.
    weight_NK: x's dtype, contiguous.
    config: by default `default_config`, which was not measured.
    out: buffer for the result, (R, N), of x's dtype.
    workspace: for a split K; by default the current stream's. ValueError if it is too small.
    """
    check_shape("weight_NK", weight_NK, (None, None))
    n, k = weight_NK.shape
    out = result_of(x_RK, (n, k), out, gated=False, weight_NK=weight_NK)
    check_dtype((x_RK.dtype,), weight_NK=weight_NK)
    config = config or default_config(x_RK.shape[0], n, k)
    return launch_skinny_gemm(x_RK, weight_NK, out, config=config, workspace=workspace, pdl=pdl)


def linear(x_RK: Tensor, weight_NK: Tensor, *, pdl: bool = False) -> Tensor:
    """x W^T, (R, N), of any number of rows, by the faster implementation measured on this GPU.

    Without a table for this GPU (`tables`), or for a shape that is not in it, that is cuBLAS, which starts when its
    predecessor has ended.
    """
    check_shape("weight_NK", weight_NK, (None, None))
    n, k = weight_NK.shape
    check_shape("x_RK", x_RK, (None, k), why="K of weight_NK")
    check_dtype(FLOATS, x_RK=x_RK)
    check_dtype((x_RK.dtype,), weight_NK=weight_NK)
    check_layout(x_RK=x_RK, weight_NK=weight_NK)
    config = tuned_config(x_RK, Product(n, k)) if x_RK.shape[0] <= MAX_ROWS else None
    if config is None:
        return torch.mm(x_RK, weight_NK.T)
    return skinny_gemm(x_RK, weight_NK, config=config, pdl=pdl)


def gate_up(
    x_RK: Tensor,
    weight_NK: Tensor,
    *,
    config: TileConfig | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """`gate_up_reference`, summed in fp32. Other parameters as in `skinny_gemm`; `out` is (R, N // 2).

    weight_NK: all gate rows, then all up rows. config: `block_n` counts gate and up rows together. By default this
    GPU's tuned one, or `default_config`.
    """
    check_shape("weight_NK", weight_NK, (None, None))
    n, k = weight_NK.shape
    out = result_of(x_RK, (n, k), out, gated=True, weight_NK=weight_NK)
    check_dtype((x_RK.dtype,), weight_NK=weight_NK)
    config = config or tuned_config(x_RK, Product(n, k, gated=True)) or default_config(x_RK.shape[0], n, k)
    return launch_skinny_gemm(x_RK, weight_NK, out, config=config, gated=True, workspace=workspace, pdl=pdl)
