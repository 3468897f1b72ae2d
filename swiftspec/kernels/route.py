"""The routing of a mixture of experts: which experts compute a row, and the weights with which their results are added.

R rows, E experts, K active ones. One program per row, of one warp: a row of logits is a few values per thread, and K
maximum searches in registers cost less than a sort.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, check_dtype, check_layout, check_shape

MAX_EXPERTS = 1024


def route_reference(logits_RE: Tensor, num_active: int, *, is_normalised: bool) -> tuple[Tensor, Tensor]:
    """(softmax in fp32, experts) of the K largest logits, largest first; ties go to the lower expert.

    is_normalised: whether a row's weights are divided by their sum.
    """
    chosen_RK = logits_RE.float().sort(dim=-1, descending=True, stable=True).indices[:, :num_active]
    weights_RK = logits_RE.float().softmax(-1).gather(1, chosen_RK)
    if is_normalised:
        weights_RK = weights_RK / weights_RK.sum(-1, keepdim=True)
    return weights_RK, chosen_RK.int()


@triton.jit
def _route_kernel(
    logits, weights, chosen, size,
    ACTIVE: tl.constexpr, BLOCK_ACTIVE: tl.constexpr, BLOCK: tl.constexpr, NORMALISED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """chosen <- experts of the largest x, weights <- their exp(x) over the sum of all, or if NORMALISED of theirs."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    place = tl.arange(0, BLOCK_ACTIVE)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    x = tl.load(logits + row * size + column, mask=column < size, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, axis=0)
    total = tl.sum(tl.exp(x - peak), axis=0)
    largest = tl.full((BLOCK_ACTIVE,), float("-inf"), tl.float32)
    experts = tl.zeros((BLOCK_ACTIVE,), tl.int32)
    for i in range(ACTIVE):
        value, index = tl.max(x, axis=0, return_indices=True)
        largest = tl.where(place == i, value, largest)
        experts = tl.where(place == i, index, experts)
        x = tl.where(column == index, float("-inf"), x)
    weight = tl.exp(largest - peak)
    if NORMALISED:
        total = tl.sum(weight, axis=0)
    at = row * ACTIVE + place
    tl.store(weights + at, weight / total, mask=place < ACTIVE)
    # No number is the largest of a row with not-a-number, but its expert must exist all the same.
    tl.store(chosen + at, tl.minimum(experts, size - 1), mask=place < ACTIVE)


def route(logits_RE: Tensor, num_active: int, *, is_normalised: bool, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """`route_reference`: (weights fp32 [R, K], experts int32 [R, K]). `pdl` and errors: see `runtime`.

    logits_RE: fp32, fp16 or bf16, contiguous; E up to 1024, any number of rows. num_active: 1 to E. is_normalised:
    whether a row's weights add up to one.
    """
    check_shape("logits_RE", logits_RE, (None, None))
    num_rows, size = logits_RE.shape
    if not 0 < size <= MAX_EXPERTS:
        raise ValueError(f"logits_RE has shape {tuple(logits_RE.shape)}; supported: E from 1 to {MAX_EXPERTS}")
    if not 1 <= num_active <= size:
        raise ValueError(f"num_active is {num_active}; expected 1 to {size}")
    check_dtype(FLOATS, logits_RE=logits_RE)
    check_layout(logits_RE=logits_RE)
    weights_RK = torch.empty(num_rows, num_active, dtype=torch.float32, device=logits_RE.device)
    chosen_RK = torch.empty(num_rows, num_active, dtype=torch.int32, device=logits_RE.device)
    if num_rows:
        _route_kernel[(num_rows,)](
            logits_RE,
            weights_RK,
            chosen_RK,
            size,
            ACTIVE=num_active,
            BLOCK_ACTIVE=triton.next_power_of_2(num_active),
            BLOCK=triton.next_power_of_2(size),
            NORMALISED=is_normalised,
            PDL=pdl,
            num_warps=1,
            launch_pdl=pdl,
        )
    return weights_RK, chosen_RK
