"""An EAGLE-3 head's forward by the compiled kernels, as `head_layers` computes it with torch.

A kernel normalises rows, then multiplies. So the layer's attention is that of a model twice as wide, whose rows are an
embedding and a hidden state side by side, each of length one; and the features are fused by a model that has only an
output matrix. R rows, h hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import SequenceInput
from swiftspec.engine.model.cpu.kernels import KEY_BLOCK, Workspace
from swiftspec.engine.model.cpu.packing import PackedModel, Packer
from swiftspec.engine.model.drafts.head_weights import LAYER
from swiftspec.engine.model.rope import rotations
from swiftspec.engine.model.weights.loader import LoadedModel, SharedWeights
from swiftspec.engine.model.weights.sharding import EMBEDDING
from swiftspec.kernels.cpu_library import Library, Model
from swiftspec.models.head_spec import HeadSpec
from swiftspec.models.spec import ModelSpec

__all__ = ["HeadKernels"]

_FEW_ROWS = 16


class HeadKernels:
    """The decoder layer of an EAGLE-3 head in float32, with the methods of `HeadLayers`."""

    has_own_threads = True
    key_block = KEY_BLOCK

    def __init__(self, spec: HeadSpec, weights: Mapping[str, Tensor], *, library: Library) -> None:
        self.spec, self.tokens = spec, weights.get("tokens")
        self._library, self._num_threads = library, torch.get_num_threads()
        size = spec.layer.hidden_size
        norms = torch.cat([weights["embedding_norm.weight"], weights["hidden_norm.weight"]])
        self._residual_norm = weights["hidden_norm.weight"].float() * math.sqrt(size)
        self._norm_floor = torch.tensor(math.sqrt(size * spec.layer.rms_norm_eps))
        self._embedding = weights[EMBEDDING]
        packer = Packer(library=library, dtype=torch.float32, shared=SharedWeights(is_shared=False))
        named = {**weights, LAYER + "input_layernorm.weight": norms}
        self._packed = PackedModel(LoadedModel(named, {}), spec.untied_layer, packer)
        self._wide_spec = dataclasses.replace(spec.layer, hidden_size=2 * size)
        self._wide = Model.from_buffer_copy(self._packed.model)
        self._wide.hidden_size, self._wide.norm_eps = 2 * size, 0.0
        self._fusion_size = weights["fc.weight"].shape[1]
        self._fusion_spec = dataclasses.replace(spec.layer, hidden_size=self._fusion_size)
        self._fusion = Model.from_buffer_copy(self._packed.model)
        self._fusion.hidden_size, self._fusion.norm_eps = self._fusion_size, 0.0
        self._fusion.final_norm = packer.vector(torch.ones(self._fusion_size))
        self._fusion.head = packer.matrix(weights["fc.weight"])
        self._turns = torch.empty(0)
        self._make_room(_FEW_ROWS)

    def _make_room(self, num_rows: int) -> None:
        def room(spec: ModelSpec, model: Model) -> Workspace:
            return Workspace(spec, num_rows, models=[model])

        self._attention_work = room(self._wide_spec, self._wide)
        self._feed_work = room(self.spec.layer, self._packed.model)
        self._fusion_work = room(self._fusion_spec, self._fusion)

    def fused(self, features: Tensor) -> Tensor:
        num_rows = len(features)
        if num_rows > self._fusion_work.num_rows:
            self._make_room(num_rows)
        work = self._fusion_work
        work.residual[:num_rows] = features
        work.fill_rows(num_rows)
        result = torch.empty(num_rows, self.spec.layer.hidden_size)
        self._library.logits(work.step_pointer, result.data_ptr(), self._num_threads)
        return result.mul_(torch.linalg.vector_norm(features, 2, -1, True).div_(math.sqrt(self._fusion_size)))

    def forward(self, inputs: Sequence[SequenceInput], hidden: Tensor) -> Tensor:
        """Hidden states [R, h], in a buffer that the next call overwrites."""
        num_rows, size = len(hidden), self.spec.layer.hidden_size
        for sequence in inputs:
            self._hold_turns(sequence.cache.capacity)
        if num_rows > self._attention_work.num_rows:
            self._make_room(num_rows)
        work, feed = self._attention_work, self._feed_work
        work.fill(inputs)
        feed.fill(inputs)
        both = work.residual[:num_rows].view(num_rows, 2, size)
        both[:, 0] = self._embedding.index_select(0, torch.from_numpy(work.tokens[:num_rows]))
        both[:, 1] = hidden
        both.div_(torch.linalg.vector_norm(both, 2, -1, True).hypot_(self._norm_floor))
        update = torch.zeros(num_rows, 2 * size)
        self._library.attention(work.step_pointer, 0, update.data_ptr(), self._num_threads)
        residual = feed.residual[:num_rows]
        before = both[:, 1] * self._residual_norm if self.spec.norm_before_residual else hidden
        torch.add(before, update[:, :size], out=residual)
        self._library.feed_forward(feed.step_pointer, 0, residual.data_ptr(), self._num_threads)
        return residual

    def carried(self, hidden: Tensor) -> Tensor:
        return hidden

    def logits(self, inputs: Sequence[SequenceInput], hidden: Tensor) -> Tensor:  # noqa: ARG002 - it is in the buffer
        """Logits of the last `forward`."""
        num_rows = sum(sequence.num_logits for sequence in inputs)
        logits = torch.empty(num_rows, self.spec.draft_vocab_size)
        self._library.logits(self._feed_work.step_pointer, logits.data_ptr(), self._num_threads)
        return logits

    def _hold_turns(self, num_positions: int) -> None:
        # The first token of a text has no slot: positions are one beyond.
        if len(self._turns) <= num_positions:
            self._turns = torch.view_as_real(rotations(self.spec.layer, num_positions + 1).squeeze(1)).contiguous()
            self._wide.turns, self._wide.num_positions = self._turns.data_ptr(), num_positions + 1
