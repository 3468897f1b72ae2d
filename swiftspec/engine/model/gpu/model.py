"""Decoder of the Llama family on static buffers: every forward is the same few launches, captured as one CUDA graph.

R rows, filled up to a capture size; V vocabulary; H query heads, G key/value heads, D head dimension.
The same methods and logits as `CpuDecoder`. On a CPU the same steps run in plain torch, one by one.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from swiftspec.devices.local import TREE_SLOTS
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Rows, as_candidates
from swiftspec.engine.model.gpu.cuda_graph import GraphPool, Replay
from swiftspec.engine.model.gpu.kv_cache import GpuKVCache, ancestor_words, capture_size_of, packed, unpacked
from swiftspec.engine.model.gpu.layers import ForwardState, Groups, Layers
from swiftspec.engine.model.gpu.ops import PRODUCTS, Ops, joined_ops, ops_for
from swiftspec.engine.model.gpu.weights import FORMATS, WeightFormat
from swiftspec.engine.model.kv_cache import PendingHalf, checked_caches
from swiftspec.engine.model.weights.loader import load_model, local_spec
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.inflation import Inflation
from swiftspec.models.layer_parts import halves, layer_groups
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import Candidates, ForwardKind, Row

_PREFILL_ROWS = 512
# torch prefers cuDNN on Hopper, which builds a plan for every new shape of a mask: 0.4 s for each new prompt length.
_PREFILL_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_NUM_CANDIDATES = 8  # the policies' default; another number is captured when first used


class _Half(NamedTuple):
    """The first half of a forward of one sequence. residual: a copy of the step's, if another sequence's follows."""

    step: ForwardState
    residual: Tensor | None


class _Answer(NamedTuple):
    """What a batch's entry has for an answer."""

    logits: Tensor
    candidates: tuple[Candidates, ...]
    half: _Half | None  # of a first half


class GpuDecoder:
    """A loaded model. One instance serves any number of caches of its own, one forward at a time.

    The residual stream, norms and rotations are fp32; activations, products and the cache are in the format's dtype.
    Logits are valid until the next forward: on a GPU its graph overwrites them. The ranks of a TP group each hold a
    shard of `spec`, whose `weights` these are, and make the same calls. Only rank 0 reads the logits.
    """

    has_own_threads = False
    tenant_bytes: tuple[int, ...] = ()  # it has no tenants

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        weight_format: WeightFormat,
        device: torch.device | str,
        ops: Ops | None = None,
        tp_group: TPGroup | None = None,
    ) -> None:
        tp_group = tp_group or TPGroup()
        self.spec = spec
        self.device = torch.device(device)
        self.dtype = weight_format.dtype
        self._held = local_spec(spec, rank=tp_group.rank, size=tp_group.size)
        self._ops = joined_ops(
            ops or ops_for(self.device), tp_group, hidden=spec.hidden_size, dtype=self.dtype, device=self.device
        )
        # The kernels are for few rows; a prompt uses the products made for many.
        self._prefill_ops = dataclasses.replace(self._ops, **PRODUCTS)
        self._layers = Layers(spec, weights, weight_format=weight_format, device=self.device, tp_group=tp_group)
        one_by_one = [(index,) for index in range(spec.num_layers)]
        first_half, second_half = halves(one_by_one)
        self._groups: Mapping[ForwardKind, Groups] = {
            ForwardKind.EXACT: one_by_one,
            ForwardKind.LAYER_PARALLEL: layer_groups(range(spec.num_layers)),
            ForwardKind.FIRST_HALF: first_half,
            ForwardKind.SECOND_HALF: second_half,
        }
        self._pool = GraphPool(self.device)
        self._halfway = PendingHalf[list[_Half]]()
        # What captured functions continue: the last forward, and a first half.
        self._last: ForwardState | None = None
        self._half: ForwardState | None = None

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        weight_format: WeightFormat = FORMATS["float32"],
        device: torch.device | str = "cpu",
        inflation: Inflation | None = None,
        ops: Ops | None = None,
        tp_group: TPGroup | None = None,
    ) -> Self:
        """Load a Hugging Face directory, expanded by `inflation` if there is one. ValueError if it cannot be used."""
        tp_group = tp_group or TPGroup()
        spec, weights = load_model(
            directory, rank=tp_group.rank, size=tp_group.size, inflation=inflation, device=device
        )
        return cls(spec, weights, weight_format=weight_format, device=device, ops=ops, tp_group=tp_group)

    def new_cache(self, capacity: int | None = None, *, tree_slots: int = TREE_SLOTS["cuda"]) -> GpuKVCache:
        return GpuKVCache(
            self._held,
            capacity=capacity or self.spec.max_position,
            tree_slots=tree_slots,
            dtype=self.dtype,
            pool=self._pool,
            ops=self._ops,
        )

    def warm_up(self, max_rows: int, caches: Sequence[Any]) -> None:
        """Run every kind of forward in the capture sizes of up to so many rows; the `caches` stay empty."""
        sizes = sorted({capture_size_of(num_rows) for num_rows in range(1, max_rows + 1)})
        for sequence, cache in enumerate(caches):
            for num_rows in sizes:
                if num_rows > min(cache.tree_slots, cache.capacity):
                    break
                entries = (Rows(sequence, tuple(Row(0, row, 0) for row in range(num_rows))),)
                for kind in ForwardKind:
                    top_k = 0 if kind is ForwardKind.SECOND_HALF else _NUM_CANDIDATES
                    self.forward(ForwardBatch(kind, entries, top_k), caches)
                    cache.reset()

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, caches: Sequence[Any]) -> BatchResult:
        """Logits, on the device, and candidates of a batch, at most 64 rows of a sequence.

        Entries are computed one after the other: a captured graph holds the addresses of one cache.
        """
        held = self._checked(batch, caches)
        begun: Sequence[_Half | None] = self._halfway.take(batch, held) or [None] * len(held)
        answers = [self._answer(batch, *each) for each in zip(batch.entries, held, begun, strict=True)]
        if batch.kind is ForwardKind.FIRST_HALF:
            self._halfway.hold(batch, held, [answer.half for answer in answers if answer.half])
        candidates = tuple(answer.candidates for answer in answers) if batch.top_k else ()
        return BatchResult(tuple(answer.logits for answer in answers), candidates)

    def check(self, batch: ForwardBatch, caches: Sequence[Any]) -> None:
        self._checked(batch, caches)

    def _checked(self, batch: ForwardBatch, caches: Sequence[GpuKVCache]) -> list[GpuKVCache]:
        held = checked_caches(batch, caches, vocab_size=self.spec.vocab_size)
        for entry in batch.entries:
            if isinstance(entry, Rows):
                capture_size_of(entry.num_rows)
        return held

    def _answer(self, batch: ForwardBatch, entry: Entry, cache: GpuKVCache, half: _Half | None) -> _Answer:
        """Compute an entry. If it is the only one its answer is not copied, and valid until the next forward."""
        if isinstance(entry, Chunk):
            step = self._prefill(entry, cache)
        else:
            step = self._replay(batch.kind, entry.rows, cache, half)
        self._last = step
        candidates = self._candidates(batch, entry, cache) if batch.top_k else ()
        is_only = len(batch.entries) == 1
        logits = step.logits[: entry.num_logits]
        begun = None
        if batch.kind is ForwardKind.FIRST_HALF:
            begun = _Half(step, None if is_only else step.residual.clone())
        return _Answer(logits if is_only else logits.clone(), candidates, begun)

    def _replay(self, kind: ForwardKind, rows: Sequence[Row], cache: GpuKVCache, half: _Half | None) -> ForwardState:
        """One forward of a sequence's rows, or half of one."""
        size = capture_size_of(len(rows))
        if half is None:
            tokens, positions, ancestors = zip(*rows, strict=True)
            words = ancestor_words(ancestors, cache.tree_length, cache.rows.num_words)
            lengths = {"prefix_length": cache.prefix_length, "tree_length": cache.tree_length}
            cache.rows.send(tokens, positions, words, **lengths)
        else:
            self._half = half.step
            if half.residual is not None:
                half.step.residual.copy_(half.residual)
        replay = cache.replays.get((kind, size))
        if replay is None:
            from_rows = partial(self._from_rows, size, cache, self._groups[kind])
            function: Callable[[], ForwardState] = from_rows if half is None else self._from_half
            replay = cache.replays[kind, size] = Replay(function, self._pool)
        step = replay()
        if kind is not ForwardKind.FIRST_HALF:
            cache.extend_tree(len(rows))
        return step

    def _candidates(self, batch: ForwardBatch, entry: Entry, cache: GpuKVCache) -> tuple[Candidates, ...]:
        """Candidates after the last forward, which was of this entry; captured if it was."""
        top_k = min(batch.top_k, self.spec.vocab_size)
        if isinstance(entry, Chunk):
            return as_candidates(*unpacked(self._top_k(top_k)))
        key = batch.kind, capture_size_of(entry.num_rows), top_k
        replay = cache.candidates.get(key)
        if replay is None:
            replay = cache.candidates[key] = Replay(partial(self._top_k, top_k), self._pool)
        return as_candidates(*unpacked(replay()[:, : entry.num_rows]))

    def _top_k(self, k: int) -> Tensor:
        assert self._last is not None, "logits follow a forward"
        return packed(*self._ops.top_candidates(self._last.logits, k))

    def _prefill(self, chunk: Chunk, cache: GpuKVCache) -> ForwardState:
        """Append a chunk to the prefix. Not captured: chunks have any length and occur once."""
        for first in range(0, chunk.num_rows, _PREFILL_ROWS):
            piece = torch.tensor(chunk.tokens[first : first + _PREFILL_ROWS], device=self.device)
            step = self._begin_chunk(piece, cache)
            self._layers.run(step, self._groups[ForwardKind.EXACT])
            cache.extend_prefix(len(piece))
        self._layers.read_out(step, slice(-chunk.num_logits, None))
        return step

    def _from_rows(self, size: int, cache: GpuKVCache, groups: Groups) -> ForwardState:
        """Embed the rows in `cache.rows`, run `groups` of the layers, and the head."""
        tokens, positions, ancestors = cache.rows.on_device(size)
        attend = partial(
            self._ops.tree_attention,
            ancestors_RW=ancestors,
            lengths_2=cache.rows.lengths_2,
            scale=self.spec.head_dim**-0.5,
            workspace=cache.workspace,
        )
        step = ForwardState(
            ops=self._ops,
            positions=positions,
            lengths=cache.rows.lengths_2,
            data=cache.data,
            cos_sin=self._layers.cos_sin(cache.capacity),
            attend=attend,
            residual=self._layers.embed(tokens),
        )
        self._layers.run(step, groups)
        self._layers.read_out(step)
        return step

    def _from_half(self) -> ForwardState:
        """The second half of a forward. The first's residual is not modified: a captured function may run twice."""
        assert self._half is not None, "a second half follows a first"
        step = dataclasses.replace(self._half, residual=self._half.residual.clone())
        self._layers.run(step, self._groups[ForwardKind.SECOND_HALF])
        self._layers.read_out(step)
        return step

    def _begin_chunk(self, tokens: Tensor, cache: GpuKVCache) -> ForwardState:
        """Rows after the prefix that see it and each other, causally."""
        first, num_rows = cache.prefix_length, len(tokens)
        visible = torch.ones(num_rows, first + num_rows, dtype=torch.bool, device=self.device).tril(first)
        return ForwardState(
            ops=self._prefill_ops,
            positions=torch.arange(first, first + num_rows, dtype=torch.int32, device=self.device),
            lengths=torch.tensor([first, 0], dtype=torch.int32, device=self.device),
            data=cache.data,
            cos_sin=self._layers.cos_sin(cache.capacity),
            attend=partial(_causal_attention, visible_RN=visible),
            residual=self._layers.embed(tokens),
        )


def _causal_attention(q_RHD: Tensor, keys_GCD: Tensor, values_GCD: Tensor, *, visible_RN: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D), over the visible ones of the first N slots) v, [R, H, D].

    The J heads that share keys are stacked as rows, so that keys are never repeated.
    """
    num_rows, num_heads, size = q_RHD.shape
    num_groups, num_slots = keys_GCD.shape[0], visible_RN.shape[1]
    group_size = num_heads // num_groups
    stacked = q_RHD.transpose(0, 1).reshape(1, num_groups, group_size * num_rows, size)
    with sdpa_kernel(_PREFILL_ATTENTION) if q_RHD.is_cuda else nullcontext():
        mixed = F.scaled_dot_product_attention(
            stacked,
            keys_GCD[None, :, :num_slots],
            values_GCD[None, :, :num_slots],
            attn_mask=visible_RN.repeat(group_size, 1),
        )
    # On a GPU the result is laid out as [1, rows, groups, D].
    return mixed.reshape(num_heads, num_rows, size).transpose(0, 1)
