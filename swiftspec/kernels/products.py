"""Parts shared by the matrix products of few rows: tiling, workspace, epilogues.

R rows, N outputs (rows of the weight), K inputs. Every program streams BLOCK_N rows of the weight over a part of K; if
`split_k` programs share an output tile, the last to arrive adds all their fp32 sums, in a fixed order: no second
launch, and the same bits every time.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, INTERPRETED, check_dtype, check_layout, check_shape, dot

MAX_ROWS = 64
MAX_SPLITS = 16
NUM_PARTIALS = 1 << 22  # of a workspace: 16 MiB, small enough for the L2; every `default_config` fits in it
_NUM_TILES = 1 << 14
_MULTIPROCESSORS = 132  # of an H100 or H200


@dataclass(frozen=True, slots=True, kw_only=True)
class TileConfig:
    """Tiling of a product.

    block_n, block_k   weight rows and inputs of one tile; powers of 2 from 16
    split_k            programs that share the inputs of one output tile, at most 16
    swap_ab            the weight is the dot's first operand: its 64 rows make a wgmma with any number of x's rows;
                       otherwise x is first, padded to 16 rows, and an mma.sync below 64 of them
    num_warps, num_stages   Triton's; num_stages - 1 tiles are in flight while one is multiplied
    """

    block_n: int
    block_k: int
    split_k: int = 1
    swap_ab: bool = False
    num_warps: int = 4
    num_stages: int = 4

    def __post_init__(self) -> None:
        for name in ("block_n", "block_k"):
            value = getattr(self, name)
            if value < 16 or value & (value - 1):
                raise ValueError(f"{name} is {value}; expected a power of 2 from 16")
        if not 1 <= self.split_k <= MAX_SPLITS:
            raise ValueError(f"split_k is {self.split_k}; expected 1 to {MAX_SPLITS}")
        if self.num_warps not in (1, 2, 4, 8):
            raise ValueError(f"num_warps is {self.num_warps}; expected 1, 2, 4 or 8")
        if not 1 <= self.num_stages <= 8:
            raise ValueError(f"num_stages is {self.num_stages}; expected 1 to 8")


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Memory in which the programs of one output tile combine. Products that may run concurrently need one each.

    partials   fp32: the sums of all programs, tile by tile
    arrivals   int32, one per output tile; zero between launches, since the last program to arrive resets it
    """

    partials: Tensor
    arrivals: Tensor

    @classmethod
    def allocate(cls, device: torch.device | str) -> "Workspace":
        """Allocate a workspace, large enough for every `default_config`."""
        return cls(
            torch.empty(NUM_PARTIALS, dtype=torch.float32, device=device),
            torch.zeros(_NUM_TILES, dtype=torch.int32, device=device),
        )

    @classmethod
    def of_stream(cls, device: torch.device) -> "Workspace":
        """The current stream's own workspace, made on first use.

        RuntimeError: if that is during a CUDA graph's capture: the graph would own the memory, and zero it on every
        replay.
        """
        if device.type != "cuda":
            return _workspace(device, 0)
        return _workspace(device, torch.cuda.current_stream(device).cuda_stream)


@functools.cache  # unbounded, since a captured graph may use any of them
def _workspace(device: torch.device, stream: int) -> Workspace:
    if stream and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a split product needs a workspace, and a CUDA graph is being captured: run it once on this stream before "
            "the capture, or pass a workspace allocated before it"
        )
    return Workspace.allocate(device)


def default_config(num_rows: int, n: int, k: int, *, bits: int = 16) -> TileConfig:
    """A tiling for a shape that was not measured, from arithmetic: 40 KB or more in flight to every multiprocessor.

    That is two programs on each, and three for int4, whose unpacking needs more warps to hide. The order of operands
    follows from Triton's code for sm_90: few rows of 16 bits take fewer registers with the weight first; int4 words
    then go straight from shared memory to wgmma's registers; fp8 would be copied 8 bytes at a time.
    """
    tile_k = 256 if bits == 4 else 128 if num_rows <= 32 else 64
    num_tiles, programs = triton.cdiv(n, 64), _MULTIPROCESSORS * (3 if bits == 4 else 2)
    split_k = 1
    # A program with fewer than 4 tiles spends more time starting and ending than streaming.
    while num_tiles * split_k < programs and split_k < MAX_SPLITS and k >= 8 * tile_k * split_k:
        split_k *= 2
    return TileConfig(
        block_n=64,
        block_k=tile_k,
        split_k=split_k,
        swap_ab=bits == 4 or (bits == 16 and num_rows <= 32),
        # Every stage of an int4 tile also holds 256 inputs of all rows.
        num_stages=2 if bits == 4 and num_rows > 32 else 4,
    )


def result_of(x_RK: Tensor, shape: tuple[int, int], out: Tensor | None, *, gated: bool, **weights: Tensor) -> Tensor:
    """`out`, or a new buffer for the result. ValueError unless it and x fit a weight of this shape.

    All has to be contiguous on one device. gated: the weight's rows are pairs, and there is one output for each.
    """
    check_shape("x_RK", x_RK, (None, shape[1]), why="K of weight_NK")
    if gated and shape[0] % 2:
        raise ValueError(f"weight_NK has shape {shape}; supported: an even N, gate rows and as many up rows")
    if x_RK.shape[0] > MAX_ROWS:
        raise ValueError(f"x_RK has shape {tuple(x_RK.shape)}; supported: at most {MAX_ROWS} rows")
    if 0 in shape:
        raise ValueError(f"weight_NK has shape {shape}; supported: N and K from 1")
    num_outputs = shape[0] // 2 if gated else shape[0]
    if out is None:
        out = torch.empty(x_RK.shape[0], num_outputs, dtype=x_RK.dtype, device=x_RK.device)
    check_shape("out", out, (x_RK.shape[0], num_outputs))
    check_dtype(FLOATS, x_RK=x_RK)
    check_dtype((x_RK.dtype,), out=out)
    check_layout(x_RK=x_RK, **weights, out=out)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch parameters common to all products, whatever their weights' format."""

    grid: tuple[int, int]
    partials: Tensor
    arrivals: Tensor
    constants: dict[str, int | bool]

    @classmethod
    def plan(
        cls, x_RK: Tensor, n: int, config: TileConfig, *, gated: bool, pdl: bool, workspace: Workspace | None = None
    ) -> "Launch":
        """Launch parameters of a product; ValueError if the workspace is too small or on another device."""
        num_rows, num_tiles = x_RK.shape[0], triton.cdiv(n, config.block_n)
        if config.split_k > 1:
            workspace = Workspace.of_stream(x_RK.device) if workspace is None else workspace
            _check_workspace(workspace, x_RK, num_tiles, config.split_k * num_tiles * num_rows * config.block_n)
        return cls(
            grid=(num_tiles, config.split_k),
            # Unused without a split; Triton needs a pointer.
            partials=x_RK if workspace is None else workspace.partials,
            arrivals=x_RK if workspace is None else workspace.arrivals,
            constants={
                "BLOCK_M": max(16, triton.next_power_of_2(num_rows)),
                "BLOCK_N": config.block_n,
                "SPLIT_K": config.split_k,
                "SWAP_AB": config.swap_ab,
                "GATED": gated,
                "UPCAST": INTERPRETED,
                "PDL": pdl,
                "num_warps": config.num_warps,
                "launch_pdl": pdl,
            },
        )


def _check_workspace(workspace: Workspace, x_RK: Tensor, num_tiles: int, num_partials: int) -> None:
    check_layout(x_RK=x_RK, partials=workspace.partials, arrivals=workspace.arrivals)
    for name, tensor, dtype, needed in (
        ("partials", workspace.partials, torch.float32, num_partials),
        ("arrivals", workspace.arrivals, torch.int32, num_tiles),
    ):
        check_dtype((dtype,), **{f"workspace.{name}": tensor})
        if tensor.numel() < needed:
            raise ValueError(f"workspace.{name} has {tensor.numel()} elements; this product and tiling need {needed}")


@triton.jit
def load_tile(pointers, at, keep, size_k, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr):
    """BLOCK_K columns from `at`, of rows to keep; zeros beyond K, which with EVEN_K no program reaches."""
    if EVEN_K:
        tile = tl.load(pointers + at, mask=keep, other=0.0)
    else:
        inside = at + tl.arange(0, BLOCK_K)[None, :] < size_k
        tile = tl.load(pointers + at, mask=keep & inside, other=0.0)
    return tile


@triton.jit
def multiply(x, weight, total, SWAP_AB: tl.constexpr, UPCAST: tl.constexpr):
    """total + x weight^T for x [M, K] and weight [N, K]; with SWAP_AB its transpose, total + weight x^T."""
    if SWAP_AB:
        x, weight = weight, x
    return dot(x, tl.trans(weight), total, UPCAST)


@triton.jit
def store_tile(out, total, row, keep, tile, size, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GATED: tl.constexpr):
    """out[row] <- a tile of `size` outputs; GATED: silu(gate) * up of their pairs. row, keep: (BLOCK_M, 1)."""
    if GATED:
        gate, up = tl.split(tl.reshape(total, (BLOCK_M, BLOCK_N // 2, 2)))
        total = gate / (1.0 + tl.exp(-gate)) * up
        column = tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)[None, :]
        width = size // 2
    else:
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        width = size
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=keep & (column < width))


@triton.jit
def weight_rows(tile, size, BLOCK_N: tl.constexpr, GATED: tl.constexpr):
    """The weight's rows for a tile's columns; GATED: gate and up alternate, so that a thread holds both.

    Columns beyond the last repeat it: they are read without a mask and never stored.
    """
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = (column % 2) * (size // 2) + column // 2 if GATED else column
    return tl.minimum(row, size - 1).to(tl.int64)


@triton.jit
def finish(
    total, scale, out, partials, arrivals, num_rows, size,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, SWAP_AB: tl.constexpr,
    GATED: tl.constexpr, HAS_SCALE: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """out <- f(scale * sum over splits of total), by the last program; f = silu(gate) * up if GATED."""
    tile = tl.program_id(0)
    if SWAP_AB:
        total = tl.trans(total)
    row = tl.arange(0, BLOCK_M)[:, None]
    # Every element is kept, either by the only program of its tile or by the last.
    keep = row < num_rows
    if SPLIT_K > 1:
        at = row * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        pieces = partials + tile.to(tl.int64) * SPLIT_K * num_rows * BLOCK_N + at
        tl.store(pieces + tl.program_id(1) * num_rows * BLOCK_N, total, mask=keep, cache_modifier=".cg")
        tl.debug_barrier()  # one thread signals the arrival, for the stores of all
        last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == SPLIT_K - 1
        tl.store(arrivals + tile, 0, mask=last)
        keep = keep & last
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for split in tl.static_range(SPLIT_K):
            total += tl.load(pieces + split * num_rows * BLOCK_N, mask=keep, other=0.0, cache_modifier=".cg")
    if HAS_SCALE:
        total *= tl.load(scale + weight_rows(tile, size, BLOCK_N, GATED))[None, :]
    store_tile(out, total, row, keep, tile, size, BLOCK_M, BLOCK_N, GATED)
