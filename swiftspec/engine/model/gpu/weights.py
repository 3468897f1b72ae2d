"""A checkpoint's weights for the GPU decoder: fused, not folded, in Hugging Face's order; optionally quantised.

Norm weights stay separate, since the kernel that normalises multiplies anyway, and rotary pairs stay (i, i + D/2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from swiftspec.engine.model.weights.checkpoint import ROUTER, network_names
from swiftspec.errors import FieldError
from swiftspec.models.spec import ModelSpec

if TYPE_CHECKING:  # loads Triton
    from swiftspec.kernels.quantised_gemm import Fp8Weight, Int4Weight

Quantised: TypeAlias = "Fp8Weight | Int4Weight"  # stored in fewer bits than it is multiplied in
Weight: TypeAlias = "Tensor | Quantised"


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFormat:
    """Dtype of activations, cache, embedding, head and norms, and the quantisation of the layers' projections."""

    dtype: torch.dtype
    quantised: str | None = None


FORMATS: Mapping[str, WeightFormat] = {
    "float32": WeightFormat(dtype=torch.float32),
    "float16": WeightFormat(dtype=torch.float16),
    "bfloat16": WeightFormat(dtype=torch.bfloat16),
    "fp8": WeightFormat(dtype=torch.bfloat16, quantised="fp8"),
    "int4": WeightFormat(dtype=torch.bfloat16, quantised="int4"),
}


def read_bytes(spec: ModelSpec, weight_format: WeightFormat) -> int:
    """Fewest weight bytes that a forward of few rows reads: every layer's matrices and the head, without scales.

    A mixture's are those of one row: of its experts, and of the router. More rows read those of more experts.
    """
    width = weight_format.dtype.itemsize
    hidden, inner = spec.hidden_size, spec.intermediate_size
    num_networks, num_routed = (spec.experts.num_active, spec.experts.num_experts) if spec.experts else (1, 0)
    matrices = (
        (spec.query_size + 2 * spec.kv_size, hidden),
        (hidden, spec.query_size),
        (num_routed, hidden),
        *((2 * inner, hidden), (hidden, inner)) * num_networks,
    )
    layer_bits = sum(n * k * _bits(k, weight_format) for n, k in matrices)
    return spec.num_layers * layer_bits // 8 + spec.vocab_size * hidden * width


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """x W^T + b."""

    weight: Weight
    bias: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Gated feed-forward network. gate_up: [2 * intermediate, hidden], all gate rows, then all up rows."""

    gate_up: Weight
    down: Projection


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutedExperts:
    """Gated networks of which a router chooses `num_active` for each row.

    router     [experts, hidden]
    gate_up    [experts, 2 * intermediate, hidden]: of each, all gate rows, then all up rows
    down       [experts, hidden, intermediate]
    is_normalised   whether the weights of a row's experts add up to one
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    num_active: int
    is_normalised: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticLayer:
    """One decoder layer.

    qkv        [(H + 2 G) D, hidden]: query, key and value heads
    output     [hidden, H D]
    q_norm, k_norm  [D] weights of the head norms; None without
    """

    attention_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Projection
    mlp_norm: Tensor
    feed: Network | RoutedExperts


def build_layer(
    weights: Mapping[str, Tensor], index: int, spec: ModelSpec, *, weight_format: WeightFormat, device: torch.device
) -> StaticLayer:
    """Layer `index` of a checkpoint, on `device`. ValueError if it has experts and a quantised format."""
    if spec.experts is not None and weight_format.quantised is not None:
        plain = ", ".join(name for name, plain in FORMATS.items() if plain.quantised is None)
        raise FieldError("dtype", repr(weight_format.quantised), f"expected one of {plain} for a model with experts")

    def get(*names: str) -> Tensor:
        parts = [weights[f"model.layers.{index}.{name}"].to(device, weight_format.dtype) for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()

    def projection(*names: str, has_bias: bool = False) -> Projection:
        weight = build_weight(get(*(f"{name}.weight" for name in names)), weight_format)
        return Projection(weight=weight, bias=get(*(f"{name}.bias" for name in names)) if has_bias else None)

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return StaticLayer(
        attention_norm=get("input_layernorm.weight"),
        qkv=projection(*qkv, has_bias=spec.qkv_bias),
        q_norm=get("self_attn.q_norm.weight") if spec.qk_norm else None,
        k_norm=get("self_attn.k_norm.weight") if spec.qk_norm else None,
        output=projection("self_attn.o_proj", has_bias=spec.output_bias),
        mlp_norm=get("post_attention_layernorm.weight"),
        feed=_feed(get, spec, weight_format),
    )


def _feed(get: Callable[..., Tensor], spec: ModelSpec, weight_format: WeightFormat) -> Network | RoutedExperts:
    names = network_names(spec)
    gate_ups = (get(f"{name}.gate_proj.weight", f"{name}.up_proj.weight") for name in names)
    downs = (get(f"{name}.down_proj.weight") for name in names)
    if spec.experts is None:
        gate_up, down = (build_weight(next(weights), weight_format) for weights in (gate_ups, downs))
        return Network(gate_up=gate_up, down=Projection(weight=down))
    return RoutedExperts(
        router=get(ROUTER),
        gate_up=torch.stack(list(gate_ups)),
        down=torch.stack(list(downs)),
        num_active=spec.experts.num_active,
        is_normalised=spec.experts.is_normalised,
    )


def build_weight(weight_NK: Tensor, weight_format: WeightFormat) -> Weight:
    """The weight, quantised as `weight_format` says; unchanged if it says nothing, or if int4 cannot be packed.

    int4 is packed in blocks of inputs. In a narrow model, or a rank's narrow shard, the inputs of some weights are not
    a whole number of blocks; those stay in 16 bits, as unpackable tensors do in llama.cpp's formats.
    """
    if weight_format.quantised is None or not _is_packable(weight_NK.shape[1], weight_format):
        return weight_NK
    from swiftspec.kernels.quantised_gemm import Fp8Weight, Int4Weight

    return (Fp8Weight if weight_format.quantised == "fp8" else Int4Weight).quantise(weight_NK)


def _is_packable(num_inputs: int, weight_format: WeightFormat) -> bool:
    if weight_format.quantised != "int4":
        return True
    from swiftspec.kernels.quantised_gemm import BLOCK

    return num_inputs % BLOCK == 0


def _bits(num_inputs: int, weight_format: WeightFormat) -> int:
    """Bits per number of a weight with this many inputs."""
    if weight_format.quantised is None or not _is_packable(num_inputs, weight_format):
        return 8 * weight_format.dtype.itemsize
    return {"fp8": 8, "int4": 4}[weight_format.quantised]
