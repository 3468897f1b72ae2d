"""The first half of a gated MLP in one launch: silu(x G^T) * (x U^T).

R rows, N = 2 I rows of the weight (I gate rows, then I up rows), K inputs. It is the skinny GEMM with the weight's rows
reordered: gate and up rows alternate within a tile, so that one stream of weights, one dot and one accumulator serve
both, and every thread ends up with pairs. The intermediate that a separate SiLU would write and read never leaves the
program.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from swiftspec.kernels.products import TileConfig, Workspace, check_product, default_config
from swiftspec.kernels.runtime import check_dtype, check_shape
from swiftspec.kernels.skinny_gemm import launch_skinny_gemm
from swiftspec.kernels.tables import Product, tuned_config

__all__ = ["check_gated", "gate_up", "gate_up_reference"]


def gate_up_reference(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """silu(x gate^T) * (x up^T) in fp32, rounded once, as x; (R, N // 2)."""
    gate, up = (x_RK.float() @ weight_NK.float().T).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x_RK.dtype)


def check_gated(shape: tuple[int, int]) -> None:
    """ValueError unless the weight's rows are pairs."""
    if shape[0] % 2:
        raise ValueError(f"weight_NK has shape {shape}; supported: an even N, gate rows and as many up rows")


def gate_up(
    x_RK: Tensor,
    weight_NK: Tensor,
    *,
    config: TileConfig | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """`gate_up_reference`, summed in fp32. Other parameters as in `skinny_gemm`.

    Parameters
    ----------
    weight_NK : Tensor
        All gate rows, then all up rows.
    config : TileConfig, optional
        `block_n` counts gate and up rows together. By default this GPU's tuned one, or `default_config`.
    out : Tensor, optional
        Buffer for the result, (R, N // 2).
    """
    check_shape("weight_NK", weight_NK, (None, None))
    check_shape("x_RK", x_RK, (None, None))
    n, k = weight_NK.shape
    check_gated((n, k))
    if out is None:
        out = torch.empty(x_RK.shape[0], n // 2, dtype=x_RK.dtype, device=x_RK.device)
    check_product(x_RK, (n, k), out, n // 2, weight_NK=weight_NK)
    check_dtype("weight_NK", weight_NK, (x_RK.dtype,))
    config = config or tuned_config(x_RK, Product(n, k, gated=True)) or default_config(x_RK.shape[0], n, k)
    return launch_skinny_gemm(x_RK, weight_NK, out, config=config, gated=True, workspace=workspace, pdl=pdl)
