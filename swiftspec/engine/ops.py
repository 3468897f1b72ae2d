"""What a forward on static buffers is made of: operations with one signature and two makes, plain torch or Triton.

Shapes are those of `reference_ops`. Kernels are imported when they are asked for: a CPU needs no Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from swiftspec.engine import reference_ops

__all__ = ["KERNEL_TREE_SLOTS", "REFERENCE", "Ops", "ops_for", "triton_ops"]

KERNEL_TREE_SLOTS = 64  # two words of ancestors per row


@dataclass(frozen=True, kw_only=True, slots=True)
class Ops:
    """The operations of a forward, and what they are limited to.

    `rms_norm` is the only one that adds to the residual stream. In a group of ranks, each with a shard of every weight,
    updates are partial sums: that group's `rms_norm` sums them over the ranks first, and nothing else differs.

    Attributes
    ----------
    tree_attention_workspace : callable
        What `tree_attention` of up to so many rows and heads over a layer's keys takes as `workspace`.
    most_tree_slots : int or None
        Tree slots that `tree_attention` can tell apart. What lies behind them is seen by nobody.
    """

    rms_norm: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    quantised_gemm: Callable[..., Tensor]
    gate_up: Callable[..., Tensor]
    rope_kv_write: Callable[..., Tensor]
    tree_attention: Callable[..., Tensor]
    tree_attention_workspace: Callable[..., Tensor | None]
    keep_slots: Callable[..., None]
    top_candidates: Callable[..., tuple[Tensor, Tensor]]
    most_tree_slots: int | None


REFERENCE = Ops(
    rms_norm=reference_ops.rms_norm,
    linear=reference_ops.linear,
    quantised_gemm=reference_ops.quantised_gemm,
    gate_up=reference_ops.gate_up,
    rope_kv_write=reference_ops.rope_kv_write,
    tree_attention=reference_ops.tree_attention,
    tree_attention_workspace=lambda *_: None,
    keep_slots=reference_ops.keep_slots,
    top_candidates=reference_ops.top_candidates,
    most_tree_slots=None,
)


@cache
def triton_ops(*, pdl: bool) -> Ops:
    """The kernels; with `pdl` each starts while its predecessor ends, which takes compute capability 9.0."""
    from swiftspec.kernels.gate_up import gate_up
    from swiftspec.kernels.keep_slots import keep_slots
    from swiftspec.kernels.linear import linear
    from swiftspec.kernels.quantised_gemm import quantised_gemm
    from swiftspec.kernels.rms_norm import rms_norm
    from swiftspec.kernels.rope_kv_write import rope_kv_write
    from swiftspec.kernels.top_candidates import top_candidates
    from swiftspec.kernels.tree_attention import tree_attention, tree_attention_workspace

    return Ops(
        rms_norm=partial(rms_norm, pdl=pdl),
        linear=partial(linear, pdl=pdl),
        quantised_gemm=partial(quantised_gemm, pdl=pdl),
        gate_up=partial(gate_up, pdl=pdl),
        rope_kv_write=partial(rope_kv_write, pdl=pdl),
        tree_attention=partial(tree_attention, pdl=pdl),
        tree_attention_workspace=tree_attention_workspace,
        keep_slots=partial(keep_slots, pdl=pdl),
        top_candidates=partial(top_candidates, pdl=pdl),
        most_tree_slots=KERNEL_TREE_SLOTS,
    )


def ops_for(device: torch.device) -> Ops:
    """The kernels on a GPU, plain torch elsewhere."""
    if device.type != "cuda":
        return REFERENCE
    return triton_ops(pdl=torch.cuda.get_device_capability(device) >= (9, 0))
