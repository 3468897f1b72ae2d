"""Layers of a CPU decoder by compiled kernels: exact, or rounded to bfloat16 or int8.

A row's result is the same to the last bit whatever other rows a forward has, of its sequence or of others, and however
many threads run it. R rows, H query heads, G key/value heads, D head dimension, V vocabulary.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import SequenceInput, packed_visibility
from swiftspec.engine.model.cpu.packing import PackedModel, Packer
from swiftspec.engine.model.rope import rotations
from swiftspec.engine.model.weights.loader import LoadedModel, SharedWeights
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.kernels.cpu_library import Library, Model, SequenceRows, Step
from swiftspec.models.layer_parts import layer_groups
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.steps import PREFILL_CHUNK

_FEW_ROWS = 16
KEY_BLOCK = 16  # as in attention.hpp
_LONGEST_PIECE = 512  # rows for which all weights are read once


class Workspace:
    """Buffers for up to some number of rows, and the step that points to them."""

    def __init__(
        self,
        spec: ModelSpec,
        num_rows: int,
        *,
        models: Sequence[Model],
        widest_adapter: int = 0,
        rounds_rows: bool = False,
    ) -> None:
        self.num_rows = num_rows
        self._models = [ctypes.addressof(model) for model in models]  # of each tenant
        self.tokens, self.positions = np.empty((2, num_rows), dtype=np.int32)
        self.sequences = (SequenceRows * num_rows)()  # a sequence has at least one row
        self.residual = torch.empty(num_rows, spec.hidden_size)
        num_active = spec.experts.num_active if spec.experts else 0
        num_networks = num_active or 1  # that compute a row
        self.chosen = torch.empty(spec.num_layers, num_rows, num_active, dtype=torch.int32)
        longest = max(spec.hidden_size, spec.query_size, spec.intermediate_size) if rounds_rows else 0
        # A word of each input at most, whole groups of four, two words for each 128, and whole lines of a cache.
        rounded_width = -(-(longest + 3 + 2 * -(-longest // 128)) // 16) * 16
        self._scratch = {
            "normed": torch.empty(num_rows, spec.hidden_size),
            "qkv": torch.empty(num_rows, spec.query_size + 2 * spec.kv_size),
            "attended": torch.empty(num_rows, spec.query_size),
            "gated": torch.empty(num_rows * num_networks, spec.intermediate_size),
            "shrunk": torch.empty(num_rows, widest_adapter),
            "routed": torch.empty(num_rows * num_active, spec.hidden_size),
            "shares": torch.empty(num_rows, num_active),
            "rounded": torch.empty(num_rows * num_networks, rounded_width, dtype=torch.int32),
        }
        self.step = Step(
            sequences=ctypes.addressof(self.sequences),
            tokens=self.tokens.ctypes.data,
            positions=self.positions.ctypes.data,
            residual=self.residual.data_ptr(),
            chosen=self.chosen.data_ptr(),
            widest_adapter=widest_adapter,
            rounded_width=rounded_width,
            **{name: buffer.data_ptr() for name, buffer in self._scratch.items()},
        )
        self.step_pointer = ctypes.byref(self.step)

    def fill(self, inputs: Sequence[SequenceInput]) -> None:
        end = 0
        for sequence, held in zip(inputs, self.sequences, strict=False):
            first, end = end, end + len(sequence.tokens)
            self.tokens[first:end], self.positions[first:end] = sequence.tokens, sequence.positions
            cache = sequence.cache
            held.model = self._models[cache.tenant]
            held.first_row, held.num_rows, held.num_logits = first, end - first, sequence.num_logits
            held.prefix_length, held.tree_length = cache.prefix_length, cache.tree_length
            held.cache, held.num_slots = cache.data.data_ptr(), cache.data.shape[3]
            ancestors = sequence.ancestors
            held.visible = None if ancestors is None else packed_visibility(ancestors, cache.tree_length)
        self.step.num_rows, self.step.num_sequences = end, len(inputs)

    def routes(self) -> Tensor:
        """Experts [layers, R, active] of the rows that are set, of the layers that have been run."""
        num_layers, _, num_active = self.chosen.shape
        num_rows: int = self.step.num_rows
        return self.chosen.view(-1)[: num_layers * num_rows * num_active].view(num_layers, num_rows, num_active)

    def fill_rows(self, num_rows: int) -> None:
        """Set rows that are not attended to, each of which has an answer."""
        held = self.sequences[0]
        held.model = self._models[0]
        held.first_row, held.num_rows, held.num_logits = 0, num_rows, num_rows
        self.step.num_rows, self.step.num_sequences = num_rows, 1


@dataclass(slots=True, kw_only=True)
class _Forward:
    """A forward in progress: what the kernels read, and the owners of what it points to."""

    work: Workspace
    residual: Tensor  # [R, hidden]
    inputs: Sequence[SequenceInput]


class KernelLayers:
    """Layers of a model and its tenants, run by `Library`. In a TP group, this rank's shard of them.

    A forward is computed by as many threads as torch has when the models are loaded. Rows of several tenants share the
    products with weights that the tenants share, if their sequences are neighbours.

    `TorchTenants` has the same methods and attributes. A forward in progress is whatever `begin` returns.

    compiles_sizes: whether the first forward of each number of rows takes longer. has_own_threads: whether forwards do
    without torch's threads. longest_piece: rows of a prompt that are computed at once. key_block: of its caches.
    weight_bytes: memory of the model's weights, and what each tenant adds to it.
    """

    compiles_sizes = False
    has_own_threads = True
    key_block = KEY_BLOCK

    def __init__(
        self,
        spec: ModelSpec,
        models: Iterable[LoadedModel],
        *,
        shared: SharedWeights,
        library: Library,
        tp_group: TPGroup,
        dtype: torch.dtype,
    ) -> None:
        self._spec = spec
        self._library, self._tp_group = library, tp_group
        # The times of a rank group's prompts are composed of those of chunks.
        self.longest_piece = _LONGEST_PIECE if tp_group.size == 1 else PREFILL_CHUNK
        self._packer = Packer(library=library, dtype=dtype, shared=shared)
        self._tenants = [PackedModel(loaded, spec, self._packer) for loaded in models]
        self.weight_bytes = tuple(tenant.num_bytes for tenant in self._tenants)
        self._turns = torch.empty(0)
        self._num_threads = torch.get_num_threads()
        self._workspace = self._room_for(_FEW_ROWS)

    def _room_for(self, num_rows: int) -> Workspace:
        return Workspace(
            self._spec,
            num_rows,
            models=[tenant.model for tenant in self._tenants],
            widest_adapter=max(tenant.widest_adapter for tenant in self._tenants),
            rounds_rows=self._packer.rounds_rows,
        )

    def _hold_turns(self, num_positions: int) -> None:
        """Rotations for positions below `num_positions`, at least."""
        if self._turns.shape[0] < num_positions:
            self._turns = torch.view_as_real(rotations(self._spec, num_positions).squeeze(1)).contiguous()
            for tenant in self._tenants:
                tenant.model.turns, tenant.model.num_positions = self._turns.data_ptr(), num_positions

    def begin(self, inputs: Sequence[SequenceInput]) -> _Forward:
        """A forward of the rows of all inputs, R in all, before its first layer; inputs of a tenant are neighbours."""
        num_rows = 0
        for sequence in inputs:
            num_rows += len(sequence.tokens)
            self._hold_turns(sequence.cache.capacity)
        if self._workspace.num_rows < num_rows:
            self._workspace = self._room_for(num_rows)
        work = self._workspace
        work.fill(inputs)
        wrong = self._library.embed(work.step_pointer)
        if wrong >= 0:
            token, position = work.tokens[wrong], work.positions[wrong]
            raise IndexError(f"row {wrong} has token {token} and position {position}, which do not exist")
        return _Forward(work=work, residual=work.residual[:num_rows], inputs=inputs)

    def run(self, forward: _Forward, layers: Sequence[int]) -> None:
        if self._tp_group.size == 1 and layers:
            self._library.layers(forward.work.step_pointer, layers[0], layers[-1] + 1, self._num_threads)
            return
        for layer in layers:
            forward.residual += self._update(self._library.attention, forward, layer)
            forward.residual += self._update(self._library.feed_forward, forward, layer)

    def run_grouped(self, forward: _Forward) -> None:
        """All layers, in groups whose attention reads the input of the group's first: EasySpec gives each a device."""
        for group in layer_groups(range(self._spec.num_layers)):
            updates = [self._update(self._library.attention, forward, layer) for layer in group]
            for layer, update in zip(group, updates, strict=True):
                forward.residual += update
                forward.residual += self._update(self._library.feed_forward, forward, layer)

    def logits(self, forward: _Forward) -> Tensor:
        """Logits [rows, V] of the rows that are to have them; on other ranks than a TP group's first, a part of V."""
        num_rows = sum(sequence.num_logits for sequence in forward.inputs)
        logits = torch.empty(num_rows, self._spec.vocab_size)
        self._library.logits(forward.work.step_pointer, logits.data_ptr(), self._num_threads)
        return logits

    def routes(self) -> Tensor | None:
        return self._workspace.routes().clone() if self._spec.experts else None

    def _update(self, part: Callable[..., None], forward: _Forward, layer: int) -> Tensor:
        """What a layer's attention or feed-forward part adds to the residual stream, on all ranks together."""
        update = torch.zeros_like(forward.residual)
        part(forward.work.step_pointer, layer, update.data_ptr(), self._num_threads)
        return self._tp_group.all_reduce(update)
