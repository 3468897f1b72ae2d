"""The layers of a forward on static buffers, as the launches of `ops`.

A dense layer without biases is eight launches, one of experts eleven.

R rows, H query heads, G key/value heads, D head dimension, C slots of the cache, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swiftspec.engine.model.gpu.ops import Ops
from swiftspec.engine.model.gpu.weights import Network, Projection, RoutedExperts, WeightFormat, build_layer
from swiftspec.engine.model.rope import rotations
from swiftspec.engine.model.weights.loader import local_spec
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.spec import ModelSpec

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries [R, H, D]; keys, values [G, C, D]
Groups = Sequence[Sequence[int]]


@dataclass(slots=True, kw_only=True)
class ForwardState:
    """A forward in progress through the layers."""

    ops: Ops
    positions: Tensor
    lengths: Tensor
    data: Tensor  # the cache's
    cos_sin: Tensor
    attend: Attend
    residual: Tensor  # fp32
    update: Tensor | None = None  # to be added to the residual, which the next norm does
    logits: Tensor = field(init=False)


class Layers:
    """A model's weights on a device, or a rank's shard of them, and the forward through them."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        weight_format: WeightFormat,
        device: torch.device,
        tp_group: TPGroup,
    ) -> None:
        self._vocab_size = spec.vocab_size
        self._tp_group = tp_group
        self._spec = spec = local_spec(spec, rank=tp_group.rank, size=tp_group.size)
        self._device = device
        self._layers = [
            build_layer(weights, index, spec, weight_format=weight_format, device=device)
            for index in range(spec.num_layers)
        ]
        self._embedding = weights["model.embed_tokens.weight"].to(device, weight_format.dtype)
        self._norm = weights["model.norm.weight"].to(device, weight_format.dtype)
        is_tied = spec.tie_word_embeddings
        self._head = self._embedding if is_tied else weights["lm_head.weight"].to(device, weight_format.dtype)
        self._cos_sin: dict[int, Tensor] = {}

    def embed(self, tokens: Tensor) -> Tensor:
        """fp32 [R, hidden]: the start of the residual stream."""
        return self._embedding.index_select(0, tokens).float()

    def run(self, step: ForwardState, groups: Sequence[Sequence[int]]) -> None:
        """Run groups of layers; those of a group share their attention's input (EasySpec); groups of one are exact."""
        ops, eps = step.ops, self._spec.rms_norm_eps
        for group in groups:
            attended = [self._attend(step, index) for index in group]
            for index, output in zip(group, attended, strict=True):
                layer = self._layers[index]
                update = output if step.update is None else output + step.update
                hidden = ops.rms_norm(step.residual, update, layer.mlp_norm, eps=eps)
                step.update = _fed(ops, hidden, layer.feed)

    def _attend(self, step: ForwardState, index: int) -> Tensor:
        layer, ops, eps = self._layers[index], step.ops, self._spec.rms_norm_eps
        hidden = ops.rms_norm(step.residual, step.update, layer.attention_norm, eps=eps)
        step.update = None
        keys, values = step.data[index]
        queries = ops.rope_kv_write(
            _project(ops, hidden, layer.qkv),
            step.cos_sin,
            step.positions,
            step.lengths,
            keys,
            values,
            num_heads=self._spec.num_heads,
            q_norm_D=layer.q_norm,
            k_norm_D=layer.k_norm,
            eps=eps,
        )
        return _project(ops, step.attend(queries, keys, values).flatten(1), layer.output)

    def read_out(self, step: ForwardState, rows: slice = slice(None)) -> None:
        update = None if step.update is None else step.update[rows]
        hidden = step.ops.rms_norm(step.residual[rows], update, self._norm, eps=self._spec.rms_norm_eps)
        step.update = None
        step.logits = self._tp_group.gather(step.ops.linear(hidden, self._head), self._vocab_size).float()

    def cos_sin(self, capacity: int) -> Tensor:
        """fp32 [capacity, D]: cosines, then sines. One table per capacity: captured graphs hold its address."""
        if capacity not in self._cos_sin:
            turns = rotations(self._spec, capacity).squeeze(1)
            self._cos_sin[capacity] = torch.cat([turns.real, turns.imag], -1).to(self._device)
        return self._cos_sin[capacity]


def _project(ops: Ops, x: Tensor, projection: Projection) -> Tensor:
    weight = projection.weight
    y = ops.linear(x, weight) if isinstance(weight, Tensor) else ops.quantised_gemm(x, weight)
    return y if projection.bias is None else y.add_(projection.bias)


def _fed(ops: Ops, x: Tensor, feed: Network | RoutedExperts) -> Tensor:
    if isinstance(feed, RoutedExperts):
        logits = ops.linear(x, feed.router)
        weights, chosen = ops.route(logits, feed.num_active, is_normalised=feed.is_normalised)
        return ops.experts(x, weights, chosen, feed.gate_up, feed.down)
    weight = feed.gate_up
    gated = ops.gate_up(x, weight) if isinstance(weight, Tensor) else ops.quantised_gemm(x, weight, gated=True)
    return _project(ops, gated, feed.down)
