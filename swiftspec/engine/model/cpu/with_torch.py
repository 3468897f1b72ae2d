"""Layers of a CPU decoder by torch: for machines without a compiler, and for products in bfloat16.

The rows of one tenant are computed after those of another.

R rows, H query heads, G key/value heads, J = H / G, D head dimension, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import SequenceInput, TreeAttention
from swiftspec.engine.model.cpu.layers import Experts, Layer, build_head, build_layer
from swiftspec.engine.model.rope import rotations
from swiftspec.engine.model.weights.loader import LoadedModel, SharedWeights
from swiftspec.engine.model.weights.low_rank import merged
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.layer_parts import layer_groups
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.steps import PREFILL_CHUNK, padded_rows

_Made = TypeVar("_Made")


class _Workspace:
    """Buffers and their views for one number of rows, made once: in a small model a view costs as much as a sum."""

    def __init__(self, spec: ModelSpec, *, num_rows: int, dtype: torch.dtype) -> None:
        heads, groups, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
        # Rotation is in fp32 for every dtype of the model.
        self.qkv = torch.empty(num_rows, spec.query_size + 2 * spec.kv_size)
        per_head = self.qkv.view(num_rows, heads + 2 * groups, size)
        self.queries_keys = per_head[:, : heads + groups]
        self.qk_complex = torch.view_as_complex(self.queries_keys.unflatten(-1, (size // 2, 2)))
        self.queries_GRJD = per_head[:, :heads].unflatten(1, (groups, heads // groups)).transpose(0, 1)
        self.keys_values = per_head[:, heads:].unflatten(1, (2, groups)).permute(1, 2, 0, 3)
        self.attention = TreeAttention(spec, num_rows=num_rows, dtype=dtype)


@dataclass(slots=True, kw_only=True)
class SequencePart:
    """The rows of one sequence, and what its attention reads and writes in each of the remaining layers."""

    attention: TreeAttention
    queries: Tensor  # of these rows
    new: Tensor  # keys and values of these rows, without padding
    keys: Iterator[Tensor]
    values: Iterator[Tensor]
    new_slots: Iterator[Tensor]

    def attended(self) -> Tensor:
        """The attention of the next layer, [R, H * D], once its queries, keys and values are computed."""
        self.attention.queries_GRJD.copy_(self.queries)
        next(self.new_slots).copy_(self.new)
        return self.attention(next(self.keys), next(self.values))


class DecoderLayers:
    """What decoder layers have in common: norms, rotations, queries, keys and values, attention.

    RMSNorm(x) = weight * sqrt(h) * x / |x|; weights are folded into the matrices that follow, see `layers`. Matrices
    and cache have the dtype; the residual stream is in fp32.
    """

    def __init__(self, shape: ModelSpec, *, dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        # x / sqrt(mean(x^2) + eps) = sqrt(size) * x / hypot(|x|, sqrt(size * eps))
        self._norm_floor = torch.tensor(math.sqrt(shape.hidden_size * shape.rms_norm_eps))
        self._head_norm_floor = torch.tensor(math.sqrt(shape.head_dim * shape.rms_norm_eps))
        self._rotations = rotations(shape, 1)
        self._workspaces: dict[int, _Workspace] = {}

    def _unit(self, rows: Tensor) -> Tensor:
        """Rows of length one, but for the norm's epsilon. Three ops instead of rms_norm's eight."""
        norm: Tensor = torch.linalg.vector_norm(rows, 2, -1, True)
        return rows / norm.hypot_(self._norm_floor)

    def _turns(self, positions: Sequence[int], *, capacity: int = 0) -> Tensor:
        """Rotations of rows at these positions; those of a whole cache are made at once, if its capacity is given."""
        if len(self._rotations) <= max(positions):
            self._rotations = rotations(self._shape, max(capacity, 2 * (max(positions) + 1)))
        return self._rotations.index_select(0, torch.tensor(positions))

    def _norm_heads(self, heads: Tensor, weights: Tensor | None) -> None:
        """Normalise heads [R, .., D] in place, if there are weights of head norms."""
        if weights is not None:
            norm = torch.linalg.vector_norm(heads, 2, -1, True)
            heads.div_(norm.hypot_(self._head_norm_floor)).mul_(weights)

    def _workspace(self, num_rows: int) -> _Workspace:
        """The workspace of so many rows; they see everything until its attention is prepared."""
        if num_rows not in self._workspaces:
            self._workspaces[num_rows] = _Workspace(self._shape, num_rows=num_rows, dtype=self._dtype)
        return self._workspaces[num_rows]

    def _project(self, layer: Layer, rows: Tensor, turns: Tensor) -> None:
        """Compute queries, keys and values of rows of length one, which are in their workspace then."""
        work = self._workspace(len(rows))
        work.qkv.copy_(layer.qkv(rows.to(self._dtype)))
        self._norm_heads(work.queries_keys, layer.qk_norm)
        work.qk_complex.mul_(turns)

    def _parts(self, inputs: Sequence[SequenceInput], num_padding: int = 0) -> list[SequencePart]:
        """The rows of each sequence, the last with the padding: copies of its last row, which are not cached."""
        total = sum(len(sequence.tokens) for sequence in inputs)
        work, parts, end = self._workspace(total + num_padding), [], 0
        for sequence in inputs:
            cache, num_rows, visible = sequence.cache, len(sequence.tokens), sequence.visible
            first, end, size = end, end + num_rows, num_rows
            if num_padding and end == total:
                visible, size = np.pad(visible, ((0, num_padding), (0, 0)), mode="edge"), num_rows + num_padding
            is_only = len(inputs) == 1
            attention = work.attention if is_only else TreeAttention(self._shape, num_rows=size, dtype=self._dtype)
            num_slots = attention.prepare(visible, prefix_length=cache.prefix_length)
            parts.append(
                SequencePart(
                    attention=attention,
                    queries=work.queries_GRJD[:, first : first + size],
                    new=work.keys_values[:, :, first:end],
                    keys=iter(cache.data[:, :1, :, :num_slots].unbind(0)),
                    values=iter(cache.data[:, 1:, :, :num_slots].unbind(0)),
                    new_slots=iter(cache.data[:, :, :, cache.length : cache.length + num_rows].unbind(0)),
                )
            )
        return parts

    def _read_out(self, residual: Tensor, inputs: Sequence[SequenceInput]) -> Tensor:
        """What the head reads: the rows that are to have logits, normalised."""
        if any(sequence.ancestors is None for sequence in inputs):
            rows: list[int] = []
            end = 0
            for sequence in inputs:
                end += len(sequence.tokens)
                rows += range(end - sequence.num_logits, end)
            residual = residual.index_select(0, torch.tensor(rows))
        return self._unit(residual).to(self._dtype)

    def _attended(self, layer: Layer, rows: Tensor, turns: Tensor, parts: Sequence[SequencePart]) -> Tensor:
        """A layer's attention of rows of length one, this rank's part of it."""
        self._project(layer, rows, turns)
        attended = [part.attended() for part in parts]
        # A sequence alone is spared the copy.
        return layer.output(attended[0] if len(attended) == 1 else torch.cat(attended))


@dataclass(slots=True, kw_only=True)
class _Forward:
    """A forward in progress through the layers."""

    turns: Tensor
    residual: Tensor
    inputs: Sequence[SequenceInput]
    parts: Sequence[SequencePart]


class TorchLayers(DecoderLayers):
    """A model's layers, or this rank's shard of them. num_bytes: of its weights, without those that it shares."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        shared: SharedWeights,
        dtype: torch.dtype,
        tp_group: TPGroup,
    ) -> None:
        super().__init__(spec, dtype=dtype)
        self._tp_group = tp_group
        self.num_bytes = 0

        def once(kind: str, names: Sequence[str], make: Callable[[], _Made]) -> _Made:
            def counted() -> _Made:
                self.num_bytes += dtype.itemsize * sum(weights[name].numel() for name in names)
                return make()

            return shared.once(kind, [weights[name] for name in names], counted)

        self._embedding = once("embedding", [EMBEDDING], lambda: weights[EMBEDDING].to(dtype))
        self._layers = []
        for index in range(spec.num_layers):
            names = [name for name in weights if name.startswith(f"model.layers.{index}.")]
            self._layers.append(once("layer", names, partial(build_layer, weights, index, spec, dtype=dtype)))
        head = [EMBEDDING if spec.tie_word_embeddings else HEAD, "model.norm.weight"]
        self._head = once("head", head, partial(build_head, weights, spec, dtype=dtype))
        self._num_rows = 0  # of the last forward, without padding

    @torch.inference_mode()
    def begin(self, inputs: Sequence[SequenceInput]) -> _Forward:
        """A forward of R rows before its first layer.

        With a prompt among them the rows are padded to one of a few sizes with copies of the last one, never cached:
        products of each other size would be compiled when first needed, and stay in memory.
        """
        self._num_rows = num_rows = sum(len(sequence.tokens) for sequence in inputs)
        has_prompt = any(sequence.ancestors is None for sequence in inputs)
        num_padding = padded_rows(num_rows) - num_rows if has_prompt else 0
        tokens = [token for sequence in inputs for token in sequence.tokens]
        positions = [position for sequence in inputs for position in sequence.positions]
        capacity = max(sequence.cache.capacity for sequence in inputs)
        return _Forward(
            turns=self._turns(positions + positions[-1:] * num_padding, capacity=capacity),
            residual=self._embedding.index_select(0, torch.tensor(tokens + tokens[-1:] * num_padding)).float(),
            inputs=inputs,
            parts=self._parts(inputs, num_padding),
        )

    @torch.inference_mode()
    def run(self, forward: _Forward, layers: Sequence[int]) -> None:
        for layer in map(self._layers.__getitem__, layers):
            forward.residual.add_(self._attention_of(forward, layer, self._unit(forward.residual)))
            self._feed(forward, layer)

    @torch.inference_mode()
    def run_grouped(self, forward: _Forward) -> None:
        for layers in layer_groups(self._layers):
            hidden = self._unit(forward.residual)
            attended = [self._attention_of(forward, layer, hidden) for layer in layers]
            for layer, output in zip(layers, attended, strict=True):
                forward.residual.add_(output)
                self._feed(forward, layer)

    @torch.inference_mode()
    def logits(self, forward: _Forward) -> Tensor:
        return self._head(self._read_out(forward.residual, forward.inputs))

    def routes(self) -> Tensor | None:
        chosen = [layer.feed.chosen[: self._num_rows] for layer in self._layers if isinstance(layer.feed, Experts)]
        return torch.stack(chosen).int() if chosen else None

    def _attention_of(self, forward: _Forward, layer: Layer, hidden: Tensor) -> Tensor:
        return self._tp_group.all_reduce(self._attended(layer, hidden, forward.turns, forward.parts))

    def _feed(self, forward: _Forward, layer: Layer) -> None:
        update = layer.feed(self._unit(forward.residual).to(self._dtype))
        forward.residual.add_(self._tp_group.all_reduce(update))


class _Forwards(NamedTuple):
    """A forward in progress: one of each tenant that has rows."""

    inputs: Sequence[SequenceInput]
    parts: Sequence[tuple[TorchLayers, Any]]

    @property
    def residual(self) -> Tensor:
        own = [each.residual[: sum(len(sequence.tokens) for sequence in each.inputs)] for _, each in self.parts]
        return own[0] if len(own) == 1 else torch.cat(own)


class TorchTenants:
    """Layers of a model and its tenants. Layers that are equal as a whole are held once; adapters become layers."""

    compiles_sizes = True
    has_own_threads = False
    longest_piece = PREFILL_CHUNK
    key_block = 1

    def __init__(
        self,
        spec: ModelSpec,
        models: Iterable[LoadedModel],
        *,
        shared: SharedWeights,
        dtype: torch.dtype,
        tp_group: TPGroup,
    ) -> None:
        self._tenants = [
            TorchLayers(spec, merged(*loaded), shared=shared, dtype=dtype, tp_group=tp_group) for loaded in models
        ]
        self.weight_bytes = tuple(tenant.num_bytes for tenant in self._tenants)

    def begin(self, inputs: Sequence[SequenceInput]) -> _Forwards:
        """A forward of each tenant's rows; a tenant's inputs are neighbours."""
        parts = []
        for tenant, own in groupby(inputs, key=lambda sequence: sequence.cache.tenant):
            layers = self._tenants[tenant]
            parts.append((layers, layers.begin(list(own))))
        return _Forwards(inputs, parts)

    def run(self, forward: _Forwards, layers: Sequence[int]) -> None:
        for tenant, own in forward.parts:
            tenant.run(own, layers)

    def run_grouped(self, forward: _Forwards) -> None:
        for tenant, own in forward.parts:
            tenant.run_grouped(own)

    def logits(self, forward: _Forwards) -> Tensor:
        return torch.cat([tenant.logits(own) for tenant, own in forward.parts])

    def routes(self) -> Tensor | None:
        """Experts [layers, R, active] of the last forward's rows; None without experts, which a model alone has."""
        return self._tenants[0].routes()
