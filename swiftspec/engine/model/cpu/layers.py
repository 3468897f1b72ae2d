"""Converts checkpoint weights for the CPU forward: fused, folded, reordered and packed. Exact in exact arithmetic.

Weights are packed once at load, as a decode step is bound by reading them.

G key/value heads, J query heads per key/value head, D head dimension.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.model.rope import interleaved
from swiftspec.engine.model.weights.checkpoint import ROUTER, network_names
from swiftspec.models.spec import ModelSpec

# The packed layout is chosen for this many rows. 4 to 32 are equally fast from 1 to 64 rows; in fp32 a layout
# chosen for 1 row takes twice as long from 2 rows on.
_PACKED_FOR_ROWS = 8
# A packed call costs about 9 us before it multiplies. In fp32 the plain call costs 2 us and is faster up to about this
# many multiplications; in bf16 the packed call is always faster.
_PLAIN_MULTIPLICATIONS = 400_000


def _can_pack(dtype: torch.dtype) -> bool:
    ops = torch.ops.mkldnn
    if not (torch.backends.mkldnn.is_available() and hasattr(ops, "_linear_pointwise")):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(ops._is_mkldnn_bf16_supported()))


class Linear:
    """y = x W^T + b for x [rows, in], W [out, in], b [out] or None, all of one dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype) -> None:
        plain = weight.to(dtype).contiguous()
        self._bias = None if bias is None else bias.to(dtype)
        self._packed: Tensor | None = None
        if _can_pack(dtype):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(plain, _PACKED_FOR_ROWS)
        # The most rows for which the plain weight is used; if there are none, it is not kept in memory.
        self._plain_rows = torch.iinfo(torch.int64).max
        if self._packed is not None:
            self._plain_rows = _PLAIN_MULTIPLICATIONS // plain.numel() if dtype == torch.float32 else 0
        self._plain = plain if self._plain_rows > 0 else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._plain is not None and x.shape[0] <= self._plain_rows:
            return F.linear(x, self._plain, self._bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._packed, self._bias, "none", [], "")
        return y


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One decoder layer. The inputs of `qkv` and `feed` are unit vectors: norm weights are folded into them.

    qkv        [query + 2 kv, hidden]; rotary pairs interleaved, queries scaled by 1/sqrt(D)
    output     [hidden, J * G * D]: attention returns the heads of a group interleaved with the other groups'
    feed       of unit vectors [R, hidden]: the update of the residual stream, this rank's part of it
    qk_norm    [query heads + kv heads, D] weights of the head norms, scales included; None without head norms
    """

    qkv: Linear
    output: Linear
    feed: Callable[[Tensor], Tensor]
    qk_norm: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Network:
    """Gated feed-forward network. gate_up: [2 * intermediate, hidden]."""

    gate_up: Linear
    down: Linear

    def __call__(self, hidden: Tensor) -> Tensor:
        gate, up = self.gate_up(hidden).chunk(2, -1)
        return self.down(F.silu(gate).mul_(up))


@dataclass(kw_only=True, slots=True)
class Experts:
    """Routed experts, whose weighted results add up. chosen: [R, active] of the last call, the likeliest first."""

    router: Linear
    networks: Sequence[_Network]
    num_active: int
    is_normalised: bool
    chosen: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = torch.empty(0, self.num_active, dtype=torch.int64)

    def __call__(self, hidden: Tensor) -> Tensor:
        weights, chosen = self.router(hidden).float().softmax(-1).topk(self.num_active)
        self.chosen = chosen
        if self.is_normalised:
            weights /= weights.sum(-1, keepdim=True)
        update = torch.zeros_like(hidden)
        for expert in chosen.unique().tolist():
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            result = self.networks[expert](hidden[rows])
            update.index_add_(0, rows, result * weights[rows, places, None].to(result.dtype))
        return update


def build_layer(weights: Mapping[str, Tensor], index: int, spec: ModelSpec, *, dtype: torch.dtype) -> Layer:
    """Layer `index` of a checkpoint. Everything is computed in fp32 and rounded once."""

    def get(name: str) -> Tensor:
        return weights[f"model.layers.{index}.{name}"].float()

    norm = get("input_layernorm.weight")
    qkv_weight = torch.cat([_head_rows(get(f"self_attn.{name}_proj.weight"), name, spec) for name in "qkv"])
    qkv_bias = None
    if spec.qkv_bias:
        qkv_bias = torch.cat([_head_rows(get(f"self_attn.{name}_proj.bias"), name, spec) for name in "qkv"])
    output = get("self_attn.o_proj.weight").view(-1, spec.num_kv_heads, spec.group_size, spec.head_dim)
    return Layer(
        qkv=Linear(_fold_norm(qkv_weight, norm), qkv_bias, dtype=dtype),
        output=Linear(
            output.transpose(1, 2).reshape(spec.hidden_size, spec.query_size),
            get("self_attn.o_proj.bias") if spec.output_bias else None,
            dtype=dtype,
        ),
        feed=_feed(get, spec, dtype=dtype),
        qk_norm=_head_norms(get("self_attn.q_norm.weight"), get("self_attn.k_norm.weight"), spec)
        if spec.qk_norm
        else None,
    )


def _feed(get: Callable[[str], Tensor], spec: ModelSpec, *, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    norm = get("post_attention_layernorm.weight")

    def network(name: str) -> _Network:
        gate_up = torch.cat([get(f"{name}.gate_proj.weight"), get(f"{name}.up_proj.weight")])
        return _Network(
            gate_up=Linear(_fold_norm(gate_up, norm), None, dtype=dtype),
            down=Linear(get(f"{name}.down_proj.weight"), None, dtype=dtype),
        )

    networks = [network(name) for name in network_names(spec)]
    if spec.experts is None:
        return networks[0]
    return Experts(
        router=Linear(_fold_norm(get(ROUTER), norm), None, dtype=dtype),
        networks=networks,
        num_active=spec.experts.num_active,
        is_normalised=spec.experts.is_normalised,
    )


def build_head(weights: Mapping[str, Tensor], spec: ModelSpec, *, dtype: torch.dtype) -> Linear:
    """The final norm and the output embedding, tied or not, as one linear layer."""
    name = "model.embed_tokens.weight" if spec.tie_word_embeddings else "lm_head.weight"
    return Linear(_fold_norm(weights[name].float(), weights["model.norm.weight"].float()), None, dtype=dtype)


def _fold_norm(weight: Tensor, norm: Tensor) -> Tensor:
    """RMSNorm(x) = norm * sqrt(size) * x / |x|: all but the division is folded into the next weight's columns."""
    return weight * (norm * math.sqrt(norm.numel()))


def _head_rows(weight: Tensor, name: str, spec: ModelSpec) -> Tensor:
    if name == "v":
        return weight
    # With head norms the scale must come after them.
    scale = spec.head_dim**-0.5 if name == "q" and not spec.qk_norm else 1.0
    return interleaved(weight, spec.head_dim) * scale


def _head_norms(query: Tensor, key: Tensor, spec: ModelSpec) -> Tensor:
    query, key = interleaved(query, spec.head_dim), interleaved(key, spec.head_dim)
    # sqrt(D) of the norm and 1/sqrt(D) of the attention cancel in the queries.
    key = key * math.sqrt(spec.head_dim)
    return torch.cat([query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)])
