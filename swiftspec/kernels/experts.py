"""The experts of a mixture for 1 to 64 rows: gated networks, each of the rows that chose it, and their weighted sum.

R rows, K active experts of a row, E experts, J = 2 I neurons (I gate rows, then I up rows), H hidden size. A slot is a
row's choice: slot r K + k is expert `chosen[r, k]`. A row chooses an expert at most once, so a tile of all rows, masked
to those that chose it, holds an expert's rows whatever the routing is: nothing is sorted or counted, launches and
shapes are static, and the weights of every chosen expert are read once.

Three launches: gates and ups, of every slot; downs, of every slot; sums over a row's slots, in their order, so that a
result does not depend on which program ends first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from swiftspec.kernels.products import MAX_ROWS, TileConfig, load_tile, multiply, store_tile, weight_rows
from swiftspec.kernels.runtime import FLOATS, INTERPRETED, check_dtype, check_layout, check_shape

_PROGRAMS = 264  # two to each multiprocessor of an H100 or H200
_BLOCK_SUM = 1024  # columns of one program of the sums


def experts_reference(
    x_RH: Tensor, weights_RK: Tensor, chosen_RK: Tensor, gate_up_EJH: Tensor, down_EHI: Tensor
) -> Tensor:
    """Sum over a row's experts of weight * down (silu(gate x) * (up x)), in fp32; the gated rounded as x, and the sum.

    Every expert computes every row, so that a CUDA graph can capture it.
    """
    total_RH = torch.zeros_like(x_RH, dtype=torch.float32)
    for expert, (gate_up, down) in enumerate(zip(gate_up_EJH, down_EHI, strict=True)):
        gate, up = (x_RH.float() @ gate_up.float().T).chunk(2, dim=-1)
        gated = (F.silu(gate) * up).to(x_RH.dtype)
        weight_R1 = weights_RK.where(chosen_RK == expert, 0.0).sum(-1, keepdim=True)
        total_RH += weight_R1 * (gated.float() @ down.float().T)
    return total_RH.to(x_RH.dtype)


@triton.jit
def _experts_kernel(
    x, weight, chosen, out, num_rows, size_n, size_k,
    ACTIVE: tl.constexpr, BLOCK_ACTIVE: tl.constexpr, BY_EXPERT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, EVEN_K: tl.constexpr,
    SWAP_AB: tl.constexpr, GATED: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """out[slot] <- x[slot] weight[chosen[slot]]^T; GATED: of x[row], silu of the first half times the other.

    Program (tile of columns, y) computes the slots of one expert: of expert y if BY_EXPERT, otherwise of slot y's, if
    no slot before chose the same.
    """
    tile, y = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, BLOCK_M)[:, None]
    place = tl.arange(0, BLOCK_ACTIVE)[None, :]
    k = tl.arange(0, BLOCK_K)[None, :]
    every = tl.full((BLOCK_N, 1), True, tl.int1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slots = row * ACTIVE + place
    choices = tl.load(chosen + slots, mask=(row < num_rows) & (place < ACTIVE), other=-1)
    expert = y if BY_EXPERT else tl.load(chosen + y)
    is_ours = choices == expert
    first = tl.min(tl.min(tl.where(is_ours, slots, num_rows * ACTIVE), axis=1), axis=0)
    is_idle = first == num_rows * ACTIVE if BY_EXPERT else first != y
    if is_idle:
        return
    slot = tl.max(tl.where(is_ours, slots, -1), axis=1)[:, None]
    keep = slot >= 0

    weights = weight + expert.to(tl.int64) * size_n * size_k
    weights += weight_rows(tile, size_n, BLOCK_N, GATED)[:, None] * size_k + k
    inputs = x + (row if GATED else slot) * size_k + k
    total = tl.zeros((BLOCK_N, BLOCK_M) if SWAP_AB else (BLOCK_M, BLOCK_N), tl.float32)
    for step in tl.range(0, tl.cdiv(size_k, BLOCK_K), num_stages=STAGES):
        tile_weight = load_tile(weights, step * BLOCK_K, every, size_k, BLOCK_K, EVEN_K)
        tile_input = load_tile(inputs, step * BLOCK_K, keep, size_k, BLOCK_K, EVEN_K)
        total = multiply(tile_input, tile_weight, total, SWAP_AB, UPCAST)

    if SWAP_AB:
        total = tl.trans(total)
    store_tile(out, total, slot, keep, tile, size_n, BLOCK_M, BLOCK_N, GATED)


@triton.jit
def _sum_slots_kernel(results, weights, out, size, ACTIVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """out[row] <- sum over its slots, in their order, of weight * result."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros((BLOCK,), tl.float32)
    for place in tl.static_range(ACTIVE):
        slot = row * ACTIVE + place
        result = tl.load(results + slot * size + column, mask=column < size, other=0.0)
        total += tl.load(weights + slot) * result
    tl.store(out + row * size + column, total.to(out.dtype.element_ty), mask=column < size)


def experts(
    x_RH: Tensor,
    weights_RK: Tensor,
    chosen_RK: Tensor,
    gate_up_EJH: Tensor,
    down_EHI: Tensor,
    *,
    pdl: bool = False,
) -> Tensor:
    """`experts_reference`: [R, H], as x. `pdl` and errors: see `runtime`.

    x_RH: at most 64 rows; fp32, fp16 or bf16, contiguous. weights_RK, chosen_RK: results of `route`: fp32 and int32. A
    row's experts differ from each other. gate_up_EJH, down_EHI: x's dtype, contiguous. An expert's gate rows, then its
    up rows; its down projection.
    """
    _check(x_RH, weights_RK, chosen_RK, gate_up_EJH, down_EHI)
    (num_rows, hidden), num_slots, width = x_RH.shape, chosen_RK.numel(), down_EHI.shape[2]
    gated = torch.empty(num_slots, width, dtype=x_RH.dtype, device=x_RH.device)
    results = torch.empty(num_slots, hidden, dtype=torch.float32, device=x_RH.device)
    out = torch.empty_like(x_RH)
    if num_rows:
        _launch(x_RH, gate_up_EJH, chosen_RK, gated, gated=True, pdl=pdl)
        _launch(gated, down_EHI, chosen_RK, results, gated=False, pdl=pdl)
        _sum_slots_kernel[(num_rows, triton.cdiv(hidden, _BLOCK_SUM))](
            results,
            weights_RK,
            out,
            hidden,
            ACTIVE=chosen_RK.shape[1],
            BLOCK=min(_BLOCK_SUM, triton.next_power_of_2(hidden)),
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return out


def _check(x_RH: Tensor, weights_RK: Tensor, chosen_RK: Tensor, gate_up_EJH: Tensor, down_EHI: Tensor) -> None:
    check_shape("down_EHI", down_EHI, (None, None, None))
    num_experts, hidden, width = down_EHI.shape
    if 0 in down_EHI.shape:
        raise ValueError(f"down_EHI has shape {tuple(down_EHI.shape)}; supported: E, H and I from 1")
    check_shape("gate_up_EJH", gate_up_EJH, (num_experts, 2 * width, hidden), why="J = 2 I, as in down_EHI")
    check_shape("x_RH", x_RH, (None, hidden), why="H of down_EHI")
    num_rows = x_RH.shape[0]
    if num_rows > MAX_ROWS:
        raise ValueError(f"x_RH has shape {tuple(x_RH.shape)}; supported: at most {MAX_ROWS} rows")
    check_shape("chosen_RK", chosen_RK, (num_rows, None), why="R of x_RH")
    check_shape("weights_RK", weights_RK, tuple(chosen_RK.shape), why="that of chosen_RK")
    if not 1 <= chosen_RK.shape[1] <= num_experts:
        raise ValueError(f"chosen_RK has shape {tuple(chosen_RK.shape)}; supported: K from 1 to E, {num_experts}")
    check_dtype(FLOATS, x_RH=x_RH)
    check_dtype((x_RH.dtype,), gate_up_EJH=gate_up_EJH, down_EHI=down_EHI)
    check_dtype((torch.float32,), weights_RK=weights_RK)
    check_dtype((torch.int32,), chosen_RK=chosen_RK)
    tensors = {"weights_RK": weights_RK, "chosen_RK": chosen_RK, "gate_up_EJH": gate_up_EJH, "down_EHI": down_EHI}
    check_layout(x_RH=x_RH, **tensors)


def _launch(x: Tensor, weight_ENK: Tensor, chosen_RK: Tensor, out: Tensor, *, gated: bool, pdl: bool) -> None:
    """Launch the product of every slot with its expert's weight. x: of every row if `gated`, else of every slot."""
    num_experts, n, k = weight_ENK.shape
    num_rows, num_active = chosen_RK.shape
    # Few rows choose few experts: there are no programs for the others, which would only start and end.
    most_chosen = min(num_experts, num_rows * num_active)
    config = _tiling(num_rows, n, most_chosen)
    _experts_kernel[(triton.cdiv(n, config.block_n), most_chosen)](
        x,
        weight_ENK,
        chosen_RK,
        out,
        num_rows,
        n,
        k,
        ACTIVE=num_active,
        BLOCK_ACTIVE=triton.next_power_of_2(num_active),
        BY_EXPERT=most_chosen == num_experts,
        BLOCK_M=max(16, triton.next_power_of_2(num_rows)),
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        STAGES=config.num_stages,
        EVEN_K=k % config.block_k == 0,
        SWAP_AB=config.swap_ab,
        GATED=gated,
        UPCAST=INTERPRETED,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )


def _tiling(num_rows: int, n: int, num_experts: int) -> TileConfig:
    """A tiling that was not measured: that of `products.default_config`, but for K, which is not split.

    Most mixtures have enough columns in all chosen experts to fill the multiprocessors. Where one row's have not, half
    as many columns to a program make twice as many programs; an mma.sync then takes the place of a wgmma, which does
    not matter to a product that waits for its weights.
    """
    block_n = 64 if triton.cdiv(n, 64) * num_experts >= _PROGRAMS else 32
    return TileConfig(block_n=block_n, block_k=128 if num_rows <= 32 else 64, swap_ab=num_rows <= 32)
