"""Decoder of the Llama family for a few rows at a time: prefill, decode steps and tree-masked forwards on a CPU.

R rows, H query heads, G key/value heads, J = H / G, D head dimension, V vocabulary.
Makes no decisions: the caller says which rows to run and which slots to keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.artifacts.steps import PREFILL_CHUNK, PREFILL_SIZES, padded_rows
from swiftspec.engine.model.attention import TreeAttention, Visibility, causal_visibility, tree_visibility
from swiftspec.engine.model.cpu_layers import Layer, build_head, build_layer
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.loader import load_model, local_spec
from swiftspec.engine.model.rope import rotations
from swiftspec.engine.model.sampler import top_candidates
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.layers import halves, layer_groups
from swiftspec.models.spec import Inflation, ModelSpec

__all__ = ["CpuDecoder"]


class _Workspace:
    """Buffers and their views for one number of rows, made once: in a small model a view costs as much as a sum."""

    def __init__(self, spec: ModelSpec, *, num_rows: int, dtype: torch.dtype) -> None:
        heads, groups, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.hidden = torch.empty(num_rows, spec.hidden_size, dtype=dtype)
        self.norm = torch.empty(num_rows, 1)
        # Rotation is in fp32 for every dtype of the model.
        self.qkv = torch.empty(num_rows, spec.query_size + 2 * spec.kv_size)
        per_head = self.qkv.view(num_rows, heads + 2 * groups, size)
        self.queries_keys = per_head[:, : heads + groups]
        self.qk_complex = torch.view_as_complex(self.queries_keys.unflatten(-1, (size // 2, 2)))
        self.queries_GRJD = per_head[:, :heads].unflatten(1, (groups, heads // groups)).transpose(0, 1)
        self.keys_values = per_head[:, heads:].unflatten(1, (2, groups)).permute(1, 2, 0, 3)
        self.attention = TreeAttention(spec, num_rows=num_rows, dtype=dtype)


@dataclass(slots=True, kw_only=True)
class _Step:
    """A forward in progress through the layers."""

    work: _Workspace
    turns: Tensor
    residual: Tensor
    new: Tensor  # keys and values of this forward's rows, without padding
    keys: Iterator[Tensor]  # of the remaining layers
    values: Iterator[Tensor]
    new_slots: Iterator[Tensor]

    @property
    def num_rows(self) -> int:
        return self.residual.shape[0]


class CpuDecoder:
    """A loaded model. One instance serves any number of caches, one forward at a time.

    The residual stream, norms and rotations are fp32; weights, products and the cache are in `dtype`.

    The ranks of a TP group each hold a shard of `spec`, whose `weights` these are, and make the same calls. Only rank 0
    reads the logits.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        tp_group: TPGroup | None = None,
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self._tp_group = tp_group or TPGroup()
        self._held = spec = local_spec(spec, rank=self._tp_group.rank, size=self._tp_group.size)
        self._embedding = weights["model.embed_tokens.weight"].to(dtype)
        self._layers = [build_layer(weights, index, spec, dtype=dtype) for index in range(spec.num_layers)]
        self._head = build_head(weights, spec, dtype=dtype)
        # x / sqrt(mean(x^2) + eps) = sqrt(size) * x / hypot(|x|, sqrt(size * eps))
        self._norm_floor = torch.tensor(math.sqrt(spec.hidden_size * spec.rms_norm_eps))
        self._head_norm_floor = torch.tensor(math.sqrt(spec.head_dim * spec.rms_norm_eps))
        self._rotations = rotations(spec, 1)
        self._workspaces: dict[int, _Workspace] = {}
        self._groups = layer_groups(self._layers)
        self._first_half, self._second_half = halves(self._layers)
        self._halfway: _Step | None = None

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        inflation: Inflation | None = None,
        seed: int = 0,
        tp_group: TPGroup | None = None,
    ) -> CpuDecoder:
        """Load a Hugging Face directory, expanded by `inflation` if there is one; `seed` fills the expansion.

        ValueError in one sentence if the directory cannot be used.
        """
        tp_group = tp_group or TPGroup()
        spec, weights = load_model(directory, rank=tp_group.rank, size=tp_group.size, inflation=inflation, seed=seed)
        return cls(spec, weights, dtype=dtype, tp_group=tp_group)

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache for this model; as long as its longest context unless `capacity` is given."""
        return KVCache(self._held, capacity=capacity or self.spec.max_position, dtype=self.dtype)

    def warm_up(self, row_counts: Iterable[int], cache: KVCache) -> None:
        """Run forwards of these numbers of rows, and of all sizes that a prompt may need, to compile their products.

        The empty `cache` stays empty.
        """
        done = set()
        for num_rows in row_counts:
            self.forward([0] * num_rows, range(num_rows), [0] * num_rows, cache)
            cache.keep((), 0)
            done.add(num_rows)
        for below, size in pairwise((0, *PREFILL_SIZES)):
            if size not in done and below < cache.capacity:
                self.prefill([0] * (below + 1), cache)
                cache.reset()

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        ancestors: Sequence[int],
        cache: KVCache,
        *,
        fuzzy: bool = False,
    ) -> Tensor:
        """Logits [R, V] in fp32 of R rows, which become the tree's newest nodes.

        Parameters
        ----------
        tokens, positions : sequence of int
            Per row: token id, and prefix length + depth in the tree. Positions stay below the cache's capacity.
        ancestors : sequence of int
            Bit s of `ancestors[r]`: row r sees tree slot s. This forward's rows take the slots after the tree, and a
            row may see earlier ones. Every row sees the prefix and itself.
        cache : KVCache
            Extended by R tree slots. ValueError if they do not fit.
        fuzzy : bool
            Layers in groups, their attention on the group's input: logits and KV are approximate.
        """
        step = self._begin_tree(tokens, positions, ancestors, cache)
        if fuzzy:
            for group in self._groups:
                self._run_grouped(step, group)
        else:
            self._run(step, self._layers)
        cache.extend_tree(len(tokens))
        return self._logits(step)

    @torch.inference_mode()
    def exit(self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: KVCache) -> Tensor:
        """Logits from the first half of the layers, as `forward` returns them. Only its `finish` may follow."""
        step = self._begin_tree(tokens, positions, ancestors, cache)
        self._run(step, self._first_half)
        self._halfway = step
        return self._logits(step)

    @torch.inference_mode()
    def finish(self, cache: KVCache) -> Tensor:
        """The rest of the forward that `exit` began; the forward's logits."""
        step, self._halfway = self._halfway, None
        assert step is not None, "finish is called after exit"
        self._run(step, self._second_half)
        cache.extend_tree(step.num_rows)
        return self._logits(step)

    @torch.inference_mode()
    def candidates(self, logits: Tensor, k: int, _: KVCache) -> tuple[list[list[int]], list[list[float]]]:
        """The `k` most likely tokens after each row of logits [R, V], and their natural log-probs."""
        return top_candidates(logits, k)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], cache: KVCache) -> Tensor | None:
        """Append `tokens` to the prefix; logits [V] in fp32 after the last one, None if there are none.

        ValueError if the cache holds a tree or has too little room.
        """
        if cache.tree_length:
            raise ValueError(f"cache holds a tree of {cache.tree_length} slots; expected none at prefill")
        cache.require_room(len(tokens))
        step = None
        for first in range(0, len(tokens), PREFILL_CHUNK):
            chunk = tokens[first : first + PREFILL_CHUNK]
            positions = range(cache.prefix_length, cache.prefix_length + len(chunk))
            num_rows = padded_rows(len(chunk))
            step = self._begin(chunk, positions, causal_visibility(len(chunk)), cache, num_rows=num_rows)
            self._run(step, self._layers)
            cache.extend_prefix(len(chunk))
        return None if step is None else self._logits(step, row=len(chunk) - 1)[0]

    def _begin_tree(
        self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: KVCache
    ) -> _Step:
        if not len(tokens) == len(positions) == len(ancestors) > 0:
            raise ValueError(
                f"rows are {len(tokens)} tokens, {len(positions)} positions and {len(ancestors)} ancestors; "
                "expected one of each per row and at least one row"
            )
        cache.require_room(len(tokens))
        return self._begin(tokens, positions, tree_visibility(ancestors, cache.tree_length), cache)

    def _begin(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        visible: Visibility,
        cache: KVCache,
        *,
        num_rows: int | None = None,
    ) -> _Step:
        """The embeddings of R rows, and each layer's keys and values.

        num_rows: R, if larger than the number of tokens; copies of the last row, never cached, fill it up.
        """
        num_rows = num_rows or len(tokens)
        if num_padding := num_rows - len(tokens):
            visible = np.pad(visible, ((0, num_padding), (0, 0)), mode="edge")
        work = self._workspace(num_rows)
        num_slots = work.attention.prepare(visible, prefix_length=cache.prefix_length)
        return _Step(
            work=work,
            turns=self._rotations_at(_padded(positions, num_padding), cache.capacity),
            residual=self._embedding.index_select(0, torch.tensor(_padded(tokens, num_padding))).float(),
            new=work.keys_values[:, :, : len(tokens)],
            keys=iter(cache.data[:, :1, :, :num_slots].unbind(0)),
            values=iter(cache.data[:, 1:, :, :num_slots].unbind(0)),
            new_slots=iter(cache.data[:, :, :, cache.length : cache.length + len(tokens)].unbind(0)),
        )

    def _run(self, step: _Step, layers: Sequence[Layer]) -> None:
        """Run the next layers of a forward."""
        for layer in layers:
            step.residual.add_(self._attend(step, layer, self._normalised(step)))
            self._feed(step, layer)

    def _run_grouped(self, step: _Step, layers: Sequence[Layer]) -> None:
        """Run the next layers with their attention on the first one's input: EasySpec gives each a device."""
        hidden = self._normalised(step)
        attended = [self._attend(step, layer, hidden) for layer in layers]
        for layer, output in zip(layers, attended, strict=True):
            step.residual.add_(output)
            self._feed(step, layer)

    def _attend(self, step: _Step, layer: Layer, hidden: Tensor) -> Tensor:
        work = step.work
        work.qkv.copy_(layer.qkv(hidden))
        if layer.qk_norm is not None:
            self._normalise_heads(work.queries_keys, layer.qk_norm)
        work.qk_complex.mul_(step.turns)
        work.attention.queries_GRJD.copy_(work.queries_GRJD)
        next(step.new_slots).copy_(step.new)
        return self._tp_group.all_reduce(layer.output(work.attention(next(step.keys), next(step.values))))

    def _feed(self, step: _Step, layer: Layer) -> None:
        gate, up = layer.gate_up(self._normalised(step)).chunk(2, -1)
        step.residual.add_(self._tp_group.all_reduce(layer.down(F.silu(gate).mul_(up))))

    def _logits(self, step: _Step, *, row: int | None = None) -> Tensor:
        """Logits of all rows, or of one."""
        hidden = self._normalised(step)
        return self._tp_group.gather(
            self._head(hidden if row is None else hidden[row : row + 1]), self.spec.vocab_size
        ).float()

    def _normalised(self, step: _Step) -> Tensor:
        """Rows of length one; the norm's weight is folded into the next one. Three ops instead of rms_norm's eight.

        [R, hidden], in a buffer that the next call overwrites.
        """
        work = step.work
        torch.linalg.vector_norm(step.residual, 2, -1, True, out=work.norm)
        return torch.div(step.residual, work.norm.hypot_(self._norm_floor), out=work.hidden)

    def _normalise_heads(self, heads: Tensor, weight: Tensor) -> None:
        norm = torch.linalg.vector_norm(heads, 2, -1, True)
        heads.div_(norm.hypot_(self._head_norm_floor)).mul_(weight)

    def _rotations_at(self, positions: Sequence[int], capacity: int) -> Tensor:
        if self._rotations.shape[0] < capacity:
            self._rotations = rotations(self.spec, capacity)
        return self._rotations.index_select(0, torch.tensor(positions))

    def _workspace(self, num_rows: int) -> _Workspace:
        work = self._workspaces.get(num_rows)
        if work is None:
            work = self._workspaces[num_rows] = _Workspace(self._held, num_rows=num_rows, dtype=self.dtype)
        return work


def _padded(numbers: Sequence[int], num_padding: int) -> Sequence[int]:
    return [*numbers, *[numbers[-1]] * num_padding] if num_padding else numbers
