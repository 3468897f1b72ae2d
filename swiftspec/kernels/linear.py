"""x W^T by the faster implementation measured on this GPU: cuBLAS (torch.mm), or the skinny GEMM with some tiling.

R rows, N outputs, K inputs. Without a table for this GPU (`tables`), or for a shape that is not in it, cuBLAS.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swiftspec.kernels.products import MAX_ROWS, Workspace
from swiftspec.kernels.runtime import FLOATS, check_contiguous, check_dtype, check_shape, check_together
from swiftspec.kernels.skinny_gemm import skinny_gemm
from swiftspec.kernels.tables import Product, tuned_config

__all__ = ["linear"]


def linear(
    x_RK: Tensor,
    weight_NK: Tensor,
    *,
    bias_N: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """x W^T + bias, (R, N). Other parameters as in `skinny_gemm`.

    Parameters
    ----------
    x_RK : Tensor
        Any number of rows.
    pdl : bool
        No effect on cuBLAS, which starts when its predecessor has ended.
    """
    check_shape("weight_NK", weight_NK, (None, None))
    n, k = weight_NK.shape
    check_shape("x_RK", x_RK, (None, k), why="K of weight_NK")
    if out is None:
        out = torch.empty(x_RK.shape[0], n, dtype=x_RK.dtype, device=x_RK.device)
    check_shape("out", out, (x_RK.shape[0], n))
    tensors = {"x_RK": x_RK, "weight_NK": weight_NK, "out": out}
    if bias_N is not None:
        check_shape("bias_N", bias_N, (n,), why="N of weight_NK")
        tensors["bias_N"] = bias_N
    check_dtype("x_RK", x_RK, FLOATS)
    for name, tensor in tensors.items():
        check_dtype(name, tensor, (x_RK.dtype,))
    check_together(**tensors)
    check_contiguous(**tensors)

    config = tuned_config(x_RK, Product(n, k)) if x_RK.shape[0] <= MAX_ROWS else None
    if config is not None:
        return skinny_gemm(x_RK, weight_NK, config=config, bias_N=bias_N, out=out, workspace=workspace, pdl=pdl)
    if bias_N is not None:
        return torch.addmm(bias_N, x_RK, weight_NK.T, out=out)
    return torch.mm(x_RK, weight_NK.T, out=out)
