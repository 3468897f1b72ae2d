"""Residual addition and RMSNorm: x + y, then each row scaled to unit RMS and weighted.

R rows, H hidden size. One program per row: a row is at most about 16 KB, which one block holds in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, check_dtype, check_layout, check_shape

MAX_HIDDEN = 16384  # a row is in registers; a longer one spills


def rms_norm_reference(residual_RH: Tensor, update_RH: Tensor | None, weight_H: Tensor, *, eps: float) -> Tensor:
    """s / sqrt(mean(s^2) + eps) * weight with s = residual + update, in fp32; s, rounded, replaces the residual."""
    total = residual_RH.float() if update_RH is None else residual_RH.float() + update_RH.float()
    residual_RH.copy_(total)
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return (total * scale * weight_H.float()).to(weight_H.dtype)


@triton.jit
def _rms_norm_kernel(
    residual, update, weight, out, size, eps,
    HAS_UPDATE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """residual <- s = residual + update; out <- s * rsqrt(mean(s^2) + eps) * weight, for row program_id(0)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    # The weight does not depend on any earlier kernel: it may load while the predecessor finishes.
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    total = tl.load(residual + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_UPDATE:
        total += tl.load(update + row * size + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * size + columns, total.to(residual.dtype.element_ty), mask=inside)
    mean_square = tl.sum(total * total, axis=0) / size
    normed = total * tl.rsqrt(mean_square + eps) * scale
    tl.store(out + row * size + columns, normed.to(out.dtype.element_ty), mask=inside)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


def rms_norm(
    residual_RH: Tensor, update_RH: Tensor | None, weight_H: Tensor, *, eps: float, pdl: bool = False
) -> Tensor:
    """`rms_norm_reference`. `pdl` and errors: see `runtime`.

    residual_RH: fp32, fp16 or bf16, contiguous; updated in place if there is an `update_RH`. update_RH: same shape; any
    supported dtype. weight_H: the result has its dtype.
    """
    check_shape("residual_RH", residual_RH, (None, None))
    num_rows, size = residual_RH.shape
    if not 0 < size <= MAX_HIDDEN:
        raise ValueError(f"residual_RH has shape {tuple(residual_RH.shape)}; supported: H from 1 to {MAX_HIDDEN}")
    check_shape("weight_H", weight_H, (size,), why="H of residual_RH")
    tensors = {"residual_RH": residual_RH, "weight_H": weight_H}
    if update_RH is not None:
        check_shape("update_RH", update_RH, (num_rows, size), why="that of residual_RH")
        tensors["update_RH"] = update_RH
    check_dtype(FLOATS, **tensors)
    check_layout(**tensors)
    out = torch.empty(num_rows, size, dtype=weight_H.dtype, device=weight_H.device)
    if num_rows:
        block = triton.next_power_of_2(size)
        _rms_norm_kernel[(num_rows,)](
            residual_RH,
            residual_RH if update_RH is None else update_RH,
            weight_H,
            out,
            size,
            eps,
            HAS_UPDATE=update_RH is not None,
            BLOCK=block,
            PDL=pdl,
            num_warps=4 if block <= 4096 else 8,
            launch_pdl=pdl,
        )
    return out
