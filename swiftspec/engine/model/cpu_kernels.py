"""Layers of a CPU decoder by compiled kernels: weights in their own bytes, arithmetic in fp32.

A row's result is the same to the last bit however many rows a forward has, and however many threads run it.
R rows, H query heads, G key/value heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swiftspec.engine.model.attention import Visibility
from swiftspec.engine.model.cpu_packing import PackedModel
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.sampler import top_candidates
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.kernels.cpu_library import Library, Step
from swiftspec.models.layers import layer_groups
from swiftspec.models.spec import ModelSpec

__all__ = ["KernelLayers"]

_FEW_ROWS = 16
_MOST_CANDIDATES = 64  # the kernel inserts one by one


class _Workspace:
    """Buffers for up to some number of rows, and the step that points to them."""

    def __init__(self, spec: ModelSpec, num_rows: int) -> None:
        self.num_rows = num_rows
        self.tokens, self.positions = np.empty((2, num_rows), dtype=np.int32)
        self.residual = torch.empty(num_rows, spec.hidden_size)
        self._scratch = {
            "normed": torch.empty(num_rows, spec.hidden_size),
            "qkv": torch.empty(num_rows, spec.query_size + 2 * spec.kv_size),
            "attended": torch.empty(num_rows, spec.query_size),
            "gated": torch.empty(num_rows, spec.intermediate_size),
        }
        self.step = Step(
            tokens=self.tokens.ctypes.data,
            positions=self.positions.ctypes.data,
            residual=self.residual.data_ptr(),
            **{name: buffer.data_ptr() for name, buffer in self._scratch.items()},
        )


@dataclass(slots=True, kw_only=True)
class _Forward:
    """A forward in progress: what the kernels read, and the arrays that it points to."""

    step: Step
    residual: Tensor  # [R, hidden]
    visible: Visibility


class KernelLayers:
    """A model's layers, run by `Library`. In a TP group, this rank's shard of them.

    A forward is computed by as many threads as torch has when the model is loaded.
    """

    compiles_sizes = False
    has_own_threads = True

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        library: Library,
        tp_group: TPGroup,
        quantised: bool,
    ) -> None:
        self._spec = spec
        self._library, self._tp_group = library, tp_group
        self._packed = PackedModel.pack(weights, spec, library, quantised=quantised)
        self._model = ctypes.byref(self._packed.model)
        self._num_threads = torch.get_num_threads()
        self._workspace = _Workspace(spec, _FEW_ROWS)

    def begin(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility, cache: KVCache) -> _Forward:
        """A forward of R rows before its first layer."""
        num_rows = len(tokens)
        if self._workspace.num_rows < num_rows:
            self._workspace = _Workspace(self._spec, num_rows)
        self._packed.hold_turns(cache.capacity)
        work = self._workspace
        work.tokens[:num_rows], work.positions[:num_rows] = tokens, positions
        step = work.step
        step.num_rows, step.prefix_length, step.tree_length = num_rows, cache.prefix_length, cache.tree_length
        step.num_slots, step.cache, step.visible = cache.data.shape[3], cache.data.data_ptr(), visible.ctypes.data
        wrong = self._library.embed(self._model, ctypes.byref(step))
        if wrong >= 0:
            raise IndexError(
                f"row {wrong} has token {tokens[wrong]} and position {positions[wrong]}, which do not exist"
            )
        return _Forward(step=step, residual=work.residual[:num_rows], visible=visible)

    begin_prompt = begin  # any number of rows is as good as another

    def run(self, forward: _Forward, layers: Sequence[int]) -> None:
        """The next layers of this forward."""
        if self._tp_group.size == 1 and layers:
            self._library.layers(self._model, ctypes.byref(forward.step), layers[0], layers[-1] + 1, self._num_threads)
            return
        for layer in layers:
            forward.residual += self._attention(forward, layer)
            forward.residual += self._feed_forward(forward, layer)

    def run_grouped(self, forward: _Forward) -> None:
        """All layers, in groups whose attention reads the input of the group's first: EasySpec gives each a device."""
        for group in layer_groups(range(self._spec.num_layers)):
            updates = [self._attention(forward, layer) for layer in group]
            for layer, update in zip(group, updates, strict=True):
                forward.residual += update
                forward.residual += self._feed_forward(forward, layer)

    def logits(self, forward: _Forward, *, row: int | None = None) -> Tensor:
        """Logits [R, V] of all rows, or [1, V] of one; on other ranks than the first of a TP group, a part of them."""
        first, num_rows = (0, forward.step.num_rows) if row is None else (row, 1)
        logits = torch.empty(num_rows, self._spec.vocab_size)
        self._library.logits(
            self._model, ctypes.byref(forward.step), first, num_rows, logits.data_ptr(), self._num_threads
        )
        return logits

    def candidates(self, logits: Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
        """As `sampler.top_candidates`; of equally likely tokens the first."""
        num_rows, num_tokens = logits.shape
        k = min(k, num_tokens)
        if k > _MOST_CANDIDATES or not logits.is_contiguous():
            return top_candidates(logits, k)
        tokens, log_probs = np.empty((num_rows, k), dtype=np.int32), np.empty((num_rows, k), dtype=np.float32)
        addresses = tokens.ctypes.data, log_probs.ctypes.data
        self._library.top_candidates(logits.data_ptr(), num_rows, num_tokens, k, *addresses)
        return tokens.tolist(), log_probs.tolist()

    def _attention(self, forward: _Forward, layer: int) -> Tensor:
        update = torch.zeros_like(forward.residual)
        self._library.attention(self._model, ctypes.byref(forward.step), layer, update.data_ptr(), self._num_threads)
        return self._tp_group.all_reduce(update)

    def _feed_forward(self, forward: _Forward, layer: int) -> Tensor:
        update = torch.zeros_like(forward.residual)
        self._library.feed_forward(self._model, ctypes.byref(forward.step), layer, update.data_ptr(), self._num_threads)
        return self._tp_group.all_reduce(update)
