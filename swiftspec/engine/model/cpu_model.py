"""Decoder of the Llama family for a few rows at a time: prefill, decode steps and tree-masked forwards on a CPU.

R rows, H query heads, G key/value heads, J = H / G, D head dimension, V vocabulary.
Makes no decisions: the caller says which rows to run and which slots to keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from swiftspec.artifacts.steps import PREFILL_CHUNK, PREFILL_SIZES
from swiftspec.engine.model.attention import Visibility, causal_visibility, tree_visibility
from swiftspec.engine.model.cpu_kernels import KernelLayers
from swiftspec.engine.model.cpu_torch import TorchLayers
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.loader import load_model, local_spec
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.kernels.cpu_library import Library, load_library
from swiftspec.models.layers import halves
from swiftspec.models.spec import Inflation, ModelSpec

__all__ = ["CpuDecoder", "pads_prompts"]


class _Layers(Protocol):
    """The layers of a model, or of this rank's shard. A forward in progress is whatever `begin` returns.

    Attributes
    ----------
    compiles_sizes : bool
        Whether the first forward of each number of rows takes longer.
    has_own_threads : bool
        Whether forwards do without torch's threads.
    """

    compiles_sizes: bool
    has_own_threads: bool

    def begin(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility, cache: KVCache) -> Any:
        """A forward of R rows before its first layer."""

    def begin_prompt(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility, cache: KVCache) -> Any:
        """The same for rows of a prompt."""

    def run(self, forward: Any, layers: Sequence[int]) -> None:
        """The next layers of this forward."""

    def run_grouped(self, forward: Any) -> None:
        """All layers, in groups whose attention reads the input of the group's first."""

    def logits(self, forward: Any, *, row: int | None = None) -> Tensor:
        """Logits [R, V] of all rows, or [1, V] of one; V of this rank's shard."""

    def candidates(self, logits: Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
        """The `k` most likely tokens of each row, and their log-probs."""


class CpuDecoder:
    """A loaded model. One instance serves any number of caches, one forward at a time.

    dtype: float32, in which everything is computed, of weights held in the fewest bytes that are exact; bfloat16 for
    weights, products and the cache; int8 for the matrices alone, rounded. The residual stream, norms and rotations are
    fp32 in all of them.

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
        self._tp_group = tp_group = tp_group or TPGroup()
        self._held = local_spec(spec, rank=tp_group.rank, size=tp_group.size)
        self._layers = _layers_of(self._held, weights, dtype=dtype, tp_group=tp_group)
        self._all = range(spec.num_layers)
        self._first_half, self._second_half = halves(self._all)
        self._halfway: tuple[Any, int] | None = None

    @property
    def has_own_threads(self) -> bool:
        """Whether forwards do without torch's threads."""
        return self._layers.has_own_threads

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
        dtype = self.dtype if self.dtype.is_floating_point else torch.float32
        return KVCache(self._held, capacity=capacity or self.spec.max_position, dtype=dtype)

    def warm_up(self, row_counts: Iterable[int], cache: KVCache) -> None:
        """Run forwards of these numbers of rows, and of all sizes that a prompt may need, to compile their products.

        The empty `cache` stays empty.
        """
        if not self._layers.compiles_sizes:  # pages are touched and threads started, no more
            row_counts = (max(row_counts),)
        done = set()
        for num_rows in row_counts:
            self.forward([0] * num_rows, range(num_rows), [0] * num_rows, cache)
            cache.keep((), 0)
            done.add(num_rows)
        sizes = pairwise((0, *PREFILL_SIZES)) if self._layers.compiles_sizes else [(PREFILL_CHUNK - 1, PREFILL_CHUNK)]
        for below, size in sizes:
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
            self._layers.run_grouped(step)
        else:
            self._layers.run(step, self._all)
        cache.extend_tree(len(tokens))
        return self._logits(step)

    @torch.inference_mode()
    def exit(self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: KVCache) -> Tensor:
        """Logits from the first half of the layers, as `forward` returns them. Only its `finish` may follow."""
        step = self._begin_tree(tokens, positions, ancestors, cache)
        self._layers.run(step, self._first_half)
        self._halfway = step, len(tokens)
        return self._logits(step)

    @torch.inference_mode()
    def finish(self, cache: KVCache) -> Tensor:
        """The rest of the forward that `exit` began; the forward's logits."""
        assert self._halfway is not None, "finish is called after exit"
        (step, num_rows), self._halfway = self._halfway, None
        self._layers.run(step, self._second_half)
        cache.extend_tree(num_rows)
        return self._logits(step)

    @torch.inference_mode()
    def candidates(self, logits: Tensor, k: int, _: KVCache) -> tuple[list[list[int]], list[list[float]]]:
        """The `k` most likely tokens after each row of logits [R, V], and their natural log-probs."""
        return self._layers.candidates(logits, k)

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
            step = self._layers.begin_prompt(chunk, positions, causal_visibility(len(chunk)), cache)
            self._layers.run(step, self._all)
            cache.extend_prefix(len(chunk))
        return None if step is None else self._logits(step, row=len(chunk) - 1)[0]

    def _begin_tree(
        self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: KVCache
    ) -> Any:
        if not len(tokens) == len(positions) == len(ancestors) > 0:
            raise ValueError(
                f"rows are {len(tokens)} tokens, {len(positions)} positions and {len(ancestors)} ancestors; "
                "expected one of each per row and at least one row"
            )
        cache.require_room(len(tokens))
        visible = tree_visibility(ancestors, cache.tree_length)
        return self._layers.begin(tokens, positions, visible, cache)

    def _logits(self, step: Any, *, row: int | None = None) -> Tensor:
        """Logits of all rows, or of one."""
        return self._tp_group.gather(self._layers.logits(step, row=row), self.spec.vocab_size).float()


def pads_prompts(dtype: torch.dtype) -> bool:
    """Whether a decoder of this dtype computes more rows of a prompt than there are, here: torch's does."""
    return _library_for(dtype) is None


def _library_for(dtype: torch.dtype) -> Library | None:
    """The kernels, where they can be had; products in bfloat16 are torch's."""
    return None if dtype == torch.bfloat16 else load_library()


def _layers_of(spec: ModelSpec, weights: Mapping[str, Tensor], *, dtype: torch.dtype, tp_group: TPGroup) -> _Layers:
    library = _library_for(dtype)
    if library is not None:
        return KernelLayers(spec, weights, library=library, tp_group=tp_group, quantised=dtype == torch.int8)
    if dtype == torch.int8:
        raise ValueError("dtype is 'int8', for which there are compiled kernels only; install a C++ compiler (g++)")
    return TorchLayers(spec, weights, dtype=dtype, tp_group=tp_group)
