"""A head's forward: the target's features or its own hidden states in, hidden states and logits out.

With torch, or an EAGLE-3 head's by the compiled kernels. A kernel normalises rows, then multiplies. So the layer's
attention is that of a model twice as wide, whose rows are an embedding and a hidden state side by side, each of length
one; and the features are fused by a model that has only an output matrix.

R rows, h hidden size, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import SequenceInput
from swiftspec.engine.model.cpu.kernels import KEY_BLOCK, Workspace
from swiftspec.engine.model.cpu.layers import Linear, build_head, build_layer
from swiftspec.engine.model.cpu.packing import PackedModel, Packer
from swiftspec.engine.model.cpu.with_torch import DecoderLayers
from swiftspec.engine.model.drafts.head_weights import LAYER
from swiftspec.engine.model.rope import rotations
from swiftspec.engine.model.weights.loader import LoadedModel, SharedWeights
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.kernels.cpu_library import Library, Model
from swiftspec.models.head_spec import HeadSpec
from swiftspec.models.heads import Drafter

_FEW_ROWS = 16


class HeadLayers(DecoderLayers):
    """The decoder layer of a head, with what comes before and after it. weights: from `load_head_weights`.

    tokens: the target's token for each that it can propose, if those are not all.
    """

    has_own_threads = False
    key_block = 1

    def __init__(self, spec: HeadSpec, weights: Mapping[str, Tensor], *, dtype: torch.dtype) -> None:
        super().__init__(spec.layer, dtype=dtype)
        self.spec, size = spec, spec.layer.hidden_size
        self._is_mtp = spec.format is Drafter.MTP
        self._embedding = weights[EMBEDDING].to(dtype)
        norms = torch.cat([weights["embedding_norm.weight"], weights["hidden_norm.weight"]]).float()
        fusion = weights["fc.weight"].float()
        layer = dict(weights)
        if self._is_mtp:
            fusion = fusion * (norms * math.sqrt(size))
            self._feature_norm = weights["feature_norm.weight"].float() * math.sqrt(size)
        else:
            # `build_layer` takes the norm of 2 h numbers, of which each half is of length one here.
            layer[LAYER + "input_layernorm.weight"] = norms / math.sqrt(2)
            self._residual_norm = weights["hidden_norm.weight"].float() * math.sqrt(size)
        self._fusion = Linear(fusion, None, dtype=dtype)
        self._layer = build_layer(layer, 0, spec.layer, dtype=dtype)
        untied = {HEAD: weights[HEAD], "model.norm.weight": weights["model.norm.weight"]}
        self._head = build_head(untied, spec.layer, dtype=dtype)
        self.tokens = weights.get("tokens")
        carried = weights.get("carried_norm.weight")
        self._carried_norm = None if carried is None else carried.float() * math.sqrt(size)

    def fused(self, features: Tensor) -> Tensor:
        """What takes the place of hidden states where the target's features are known, [R, h] in fp32."""
        if self._is_mtp:
            return self._unit(features) * self._feature_norm
        return self._fusion(features.to(self._dtype)).float()

    def forward(self, inputs: Sequence[SequenceInput], hidden: Tensor) -> Tensor:
        """Hidden states [R, h] of rows, whose keys and values are cached. hidden: what precedes each row, [R, h]."""
        tokens = [token for sequence in inputs for token in sequence.tokens]
        positions = [position for sequence in inputs for position in sequence.positions]
        embedded = self._unit(self._embedding.index_select(0, torch.tensor(tokens)).float())
        if self._is_mtp:
            residual = self._fusion(torch.cat([embedded, self._unit(hidden)], 1).to(self._dtype)).float()
            rows = self._unit(residual)
        else:
            unit = self._unit(hidden)
            residual = unit * self._residual_norm if self.spec.norm_before_residual else hidden
            rows = torch.cat([embedded, unit], 1)
        parts = self._parts(inputs)
        residual = residual + self._attended(self._layer, rows, self._turns(positions), parts).float()
        return residual + self._layer.feed(self._unit(residual).to(self._dtype))

    def carried(self, hidden: Tensor) -> Tensor:
        """Hidden states as the next rows read them."""
        return hidden if self._carried_norm is None else self._unit(hidden) * self._carried_norm

    def logits(self, inputs: Sequence[SequenceInput], hidden: Tensor) -> Tensor:
        """Logits in fp32 of the tokens that it can propose, [rows that are to have them, draft vocabulary]."""
        return self._head(self._read_out(hidden, inputs)).float()


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
        self._packed = PackedModel(LoadedModel(named, {}), spec.layer, packer)
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
        self._attention_work = Workspace(self._wide_spec, num_rows, models=[self._wide])
        self._feed_work = Workspace(self.spec.layer, num_rows, models=[self._packed.model])
        self._fusion_work = Workspace(self._fusion_spec, num_rows, models=[self._fusion])

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
