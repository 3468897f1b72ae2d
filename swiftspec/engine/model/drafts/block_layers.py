"""A block drafter's forward with torch: the target's features and a block of tokens in, logits of its masks out.

R rows of a block, N tokens of context, F features, h hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.layers import Linear, build_head, build_layer
from swiftspec.engine.model.cpu.with_torch import DecoderLayers
from swiftspec.engine.model.drafts.head_weights import read_tensors
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.rope import interleaved
from swiftspec.engine.model.weights.checkpoint import layer_shapes
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.models.block_spec import BlockSpec
from swiftspec.models.spec import ModelSpec

__all__ = ["BlockLayers", "load_block_weights"]

_NORM, _FUSED_NORM = "model.norm.weight", "hidden_norm.weight"


def load_block_weights(spec: BlockSpec, target: ModelSpec, target_directory: Path) -> dict[str, Tensor]:
    """All weights of a block drafter; embedding and output matrix are the target's if it has none.

    ValueError names the file or directory, and the missing, unexpected or misshapen tensor.
    """
    hidden, vocab = spec.layers.hidden_size, spec.layers.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(spec.feature_layers) * target.hidden_size),
        _FUSED_NORM: (hidden,),
        _NORM: (hidden,),
    }
    for layer in range(spec.layers.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(spec.layers).items()}
    shared = {EMBEDDING: (vocab, hidden), HEAD: (vocab, hidden)}
    weights = read_tensors(spec.directory, _name, shapes | shared)
    if missing := sorted(shapes.keys() - weights.keys()):
        raise ValueError(f"{spec.directory}: tensor {missing[0]} of the drafter is missing from the checkpoint")
    theirs = read_tensors(target_directory, lambda name: name if name in shared else None, shared)
    theirs.setdefault(HEAD, theirs[EMBEDDING])
    return theirs | weights


def _name(name: str) -> str:
    """A tensor's name, as models have it."""
    name = name.removeprefix("model.")
    return f"model.{name}" if name.startswith(("layers.", "norm.", "embed_tokens.")) else name


class BlockLayers(DecoderLayers):
    """The decoder layers of a block drafter, with what comes before and after them.

    weights: from `load_block_weights`. dtype: matrices and cache have it; the residual stream is in fp32.
    """

    def __init__(self, spec: BlockSpec, weights: Mapping[str, Tensor], *, dtype: torch.dtype) -> None:
        super().__init__(spec.layers, dtype=dtype)
        self.spec, shape = spec, spec.layers
        self._embedding = weights[EMBEDDING].to(dtype)
        self._fusion = Linear(weights["fc.weight"].float(), None, dtype=dtype)
        self._layers = [build_layer(weights, index, shape, dtype=dtype) for index in range(shape.num_layers)]
        self._context = Linear(_context_weight(weights, shape), None, dtype=dtype)
        self._head = build_head(weights, spec.untied_layers, dtype=dtype)

    def read(self, features: Tensor, cache: KVCache, *, first: int) -> None:
        """Write the keys and values of verified tokens, from their features [N, F], into slots from `first` on."""
        shape, count = self._shape, len(features)
        fused = self._unit(self._fusion(features.to(self._dtype)).float())
        both = self._context(fused.to(self._dtype)).float()
        both = both.view(count, shape.num_layers, 2, shape.num_kv_heads, shape.head_dim)
        turns = self._turns(range(first, first + count))
        for index, layer in enumerate(self._layers):
            weights = None if layer.qk_norm is None else layer.qk_norm[shape.num_heads :]
            keys = both[:, index, 0]
            self._norm_heads(keys, weights)
            torch.view_as_complex(keys.unflatten(-1, (shape.head_dim // 2, 2))).mul_(turns)
        cache.data[:, :, :, first : first + count].copy_(both.permute(1, 2, 3, 0, 4))

    def forward(self, tokens: Sequence[int], cache: KVCache, *, first: int) -> Tensor:
        """Logits [R, V] at the tokens of a block at positions from `first` on, each of which sees the whole block.

        The cache's slots before `first` are the context; those from there on are overwritten.
        """
        hidden = self._embedding.index_select(0, torch.tensor(tokens)).float()
        end, turns = first + len(tokens), self._turns(range(first, first + len(tokens)))
        work = self._workspace(len(tokens))
        for layer, data in zip(self._layers, cache.data, strict=True):
            self._project(layer, self._unit(hidden), turns)
            work.attention.queries_GRJD.copy_(work.queries_GRJD)
            data[:, :, first:end].copy_(work.keys_values)
            keys, values = data[:, None, :, :end].unbind(0)
            hidden = hidden + layer.output(work.attention(keys, values)).float()
            hidden = hidden + layer.feed(self._unit(hidden).to(self._dtype)).float()
        return self._head(self._unit(hidden).to(self._dtype)).float()


def _context_weight(weights: Mapping[str, Tensor], shape: ModelSpec) -> Tensor:
    """Keys and values of all layers from fused features of length one, [2 * kv * layers, h]."""
    norm = weights[_FUSED_NORM].float() * math.sqrt(shape.hidden_size)
    parts = []
    for index in range(shape.num_layers):
        prefix = f"model.layers.{index}.self_attn."
        parts += [
            interleaved(weights[f"{prefix}k_proj.weight"].float(), shape.head_dim),
            weights[f"{prefix}v_proj.weight"].float(),
        ]
    return torch.cat(parts) * norm
