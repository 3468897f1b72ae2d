"""Names of weights: those of Qwen3-MoE's checkpoints for experts, which Mixtral's name otherwise.

mlp.gate.weight                   block_sparse_moe.gate.weight
mlp.experts.E.gate_proj.weight    block_sparse_moe.experts.E.w1.weight
mlp.experts.E.up_proj.weight      block_sparse_moe.experts.E.w3.weight
mlp.experts.E.down_proj.weight    block_sparse_moe.experts.E.w2.weight
"""

from __future__ import annotations

import re

from swiftspec.models.spec import ModelSpec

__all__ = ["ROUTER", "canonical_name", "network_names", "stored_name"]

ROUTER = "mlp.gate.weight"  # of a layer: [experts, hidden]
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_STORED = {name: short for short, name in _MIXTRAL.items()}
_BLOCK, _EXPERTS = ".block_sparse_moe.", ".mlp.experts."


def network_names(spec: ModelSpec) -> list[str]:
    """The prefixes of a layer's feed-forward networks: one, or its experts'."""
    if spec.experts is None:
        return ["mlp"]
    return [f"mlp.experts.{expert}" for expert in range(spec.experts.num_experts)]


def canonical_name(name: str) -> str:
    """Our name of a tensor in a checkpoint."""
    if _BLOCK not in name:
        return name
    return re.sub(r"\.(w[123])\.weight$", lambda found: f".{_MIXTRAL[found[1]]}.weight", name.replace(_BLOCK, ".mlp."))


def stored_name(name: str, spec: ModelSpec) -> str:
    """The name in a checkpoint of this model."""
    if spec.architecture != "mixtral" or not (_EXPERTS in name or name.endswith(ROUTER)):
        return name
    head, _, rest = name.partition(".mlp.")
    rest = re.sub(r"\.(\w+_proj)\.weight$", lambda found: f".{_STORED[found[1]]}.weight", rest)
    return f"{head}{_BLOCK}{rest}"
