"""Operations of a forward on static buffers, each implemented in plain torch and in Triton.

Shapes are those in the kernels' files, which are imported on demand: the CPU decoder needs no Triton.

PRODUCTS: in plain torch, the fast ones for many rows. `experts` waits for the device: no CUDA graph can capture it.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.gpu.weights import Quantised
from swiftspec.engine.parallel.tp_group import TPGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Ops:
    """The operations of a forward, and their limits.

    `rms_norm` is the only one that adds to the residual stream. In a TP group, where each rank has a shard of every
    weight, updates are partial sums: that group's `rms_norm` first sums them over the ranks; nothing else differs.

    tree_attention_workspace: returns the `workspace` of `tree_attention`, given the most rows, and the heads and keys
    of a layer.
    """

    rms_norm: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    quantised_gemm: Callable[..., Tensor]
    gate_up: Callable[..., Tensor]
    route: Callable[..., tuple[Tensor, Tensor]]
    experts: Callable[..., Tensor]
    rope_kv_write: Callable[..., Tensor]
    tree_attention: Callable[..., Tensor]
    tree_attention_workspace: Callable[..., Tensor | None]
    keep_slots: Callable[..., None]
    top_candidates: Callable[..., tuple[Tensor, Tensor]]


@cache
def reference_ops() -> Ops:
    """The kernels' references in plain torch: they run on any device, and a CUDA graph can capture them."""
    from swiftspec.kernels.experts import experts_reference
    from swiftspec.kernels.keep_slots import keep_slots_reference
    from swiftspec.kernels.rms_norm import rms_norm_reference
    from swiftspec.kernels.rope_kv_write import rope_kv_write_reference
    from swiftspec.kernels.route import route_reference
    from swiftspec.kernels.top_candidates import top_candidates_reference
    from swiftspec.kernels.tree_attention import tree_attention_reference

    def tree_attention(*args: Tensor, scale: float, workspace: None, **masks: Tensor) -> Tensor:
        assert workspace is None
        return tree_attention_reference(*args, **masks, scale=scale)

    return Ops(
        rms_norm=rms_norm_reference,
        **{**PRODUCTS, "experts": experts_reference},
        route=route_reference,
        rope_kv_write=rope_kv_write_reference,
        tree_attention=tree_attention,
        tree_attention_workspace=lambda *_: None,
        keep_slots=keep_slots_reference,
        top_candidates=top_candidates_reference,
    )


@cache
def triton_ops(*, pdl: bool) -> Ops:
    """The kernels; with `pdl` each starts while its predecessor ends, which needs compute capability 9.0."""
    from swiftspec.kernels.experts import experts
    from swiftspec.kernels.keep_slots import keep_slots
    from swiftspec.kernels.quantised_gemm import quantised_gemm
    from swiftspec.kernels.rms_norm import rms_norm
    from swiftspec.kernels.rope_kv_write import rope_kv_write
    from swiftspec.kernels.route import route
    from swiftspec.kernels.skinny_gemm import gate_up, linear
    from swiftspec.kernels.top_candidates import top_candidates
    from swiftspec.kernels.tree_attention import tree_attention, tree_attention_workspace

    kernels = (rms_norm, linear, quantised_gemm, gate_up, route, experts, rope_kv_write, tree_attention, keep_slots)
    by_name: dict[str, Any] = {kernel.__name__: partial(kernel, pdl=pdl) for kernel in (*kernels, top_candidates)}
    return Ops(**by_name, tree_attention_workspace=tree_attention_workspace)


def ops_for(device: torch.device) -> Ops:
    """The kernels on a GPU, plain torch elsewhere. SWIFTSPEC_PDL=0 launches kernels strictly one after another."""
    if device.type != "cuda":
        return reference_ops()
    wanted = os.environ.get("SWIFTSPEC_PDL", "1")
    if wanted not in ("0", "1"):
        raise ValueError(f"SWIFTSPEC_PDL is {wanted!r}; expected 0 or 1")
    return triton_ops(pdl=wanted == "1" and torch.cuda.get_device_capability(device) >= (9, 0))


def joined_ops(ops: Ops, tp_group: TPGroup, *, hidden: int, dtype: torch.dtype, device: torch.device) -> Ops:
    """`ops` in a TP group, whose ranks' updates are partial sums. On GPUs all of its ranks call this together.

    There the all-reduce is fused with the norm for few rows if the GPUs have symmetric memory, else NCCL precedes it.
    """
    if tp_group.size == 1:
        return ops
    exchange = None
    if device.type == "cuda":
        from swiftspec.kernels.all_reduce import all_reduce, connect

        exchange = connect(tp_group.group, hidden=hidden, dtype=dtype, device=device)

    def rms_norm(residual_RH: Tensor, update_RH: Tensor | None, weight_H: Tensor, *, eps: float) -> Tensor:
        if update_RH is not None and exchange is not None and len(update_RH) <= exchange.max_rows:
            return all_reduce(update_RH, residual_RH, weight_H, exchange, eps=eps)
        total = None if update_RH is None else tp_group.all_reduce(update_RH)
        return ops.rms_norm(residual_RH, total, weight_H, eps=eps)

    return dataclasses.replace(ops, rms_norm=rms_norm)


def _gate_up(x_RK: Tensor, weight_NK: Tensor) -> Tensor:
    """silu(x gate^T) * (x up^T), (R, N / 2); all gate rows come first."""
    return _gated(F.linear(x_RK, weight_NK))


def _gated(product: Tensor) -> Tensor:
    gate, up = product.float().chunk(2, -1)
    return (F.silu(gate) * up).to(product.dtype)


def _quantised_gemm(x_RK: Tensor, weight: Quantised, *, gated: bool = False) -> Tensor:
    """x W^T, or `_gate_up` if `gated`, with the numbers that `weight` stands for."""
    product = _gate_up if gated else F.linear
    return product(x_RK, weight.dequantise().to(x_RK.dtype))


def _experts(x_RH: Tensor, weights_RK: Tensor, chosen_RK: Tensor, gate_up_EJH: Tensor, down_EHI: Tensor) -> Tensor:
    """The result of `experts_reference`; an expert computes only the rows that chose it."""
    slots = chosen_RK.flatten().argsort(stable=True)  # by expert
    counts = chosen_RK.flatten().bincount(minlength=len(down_EHI)).tolist()

    def product(rows: Tensor, weights: Tensor) -> Tensor:
        return torch.cat([F.linear(*pair) for pair in zip(rows.split(counts), weights, strict=True)])

    num_active = chosen_RK.shape[1]
    sorted_results = product(_gated(product(x_RH[slots // num_active], gate_up_EJH)), down_EHI).float()
    results = torch.empty_like(sorted_results).index_copy_(0, slots, sorted_results)
    return torch.einsum("rk,rkh->rh", weights_RK, results.unflatten(0, chosen_RK.shape)).to(x_RH.dtype)


PRODUCTS: Mapping[str, Any] = {
    "linear": F.linear,
    "gate_up": _gate_up,
    "quantised_gemm": _quantised_gemm,
    "experts": _experts,
}
