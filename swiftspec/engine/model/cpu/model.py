"""Decoder of the Llama family for a few rows at a time: prompts, decode steps and tree-masked forwards on a CPU.

R rows, H query heads, G key/value heads, J = H / G, D head dimension, V vocabulary.
Makes no decisions: the caller says which rows to run and which slots to keep.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import SequenceInput, sequence_input
from swiftspec.engine.model.cpu.kernels import KernelLayers
from swiftspec.engine.model.cpu.with_torch import TorchTenants
from swiftspec.engine.model.drafts.features import FeatureTaps
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Rows, as_candidates
from swiftspec.engine.model.kv_cache import KVCache, PendingHalf, checked_caches
from swiftspec.engine.model.sampling.sampler import top_candidates
from swiftspec.engine.model.weights.loader import LoadedModel, SharedWeights, load_tenants, local_spec
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.errors import FieldError
from swiftspec.kernels.cpu_library import load_library
from swiftspec.models.inflation import Inflation
from swiftspec.models.layer_parts import halves
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind, Row
from swiftspec.timing.steps import PREFILL_SIZES


class CpuDecoder:
    """A model from a Hugging Face directory, and its tenants. One instance serves any number of caches in turn.

    Tenants are fine-tunes or adapters of the model; a cache's `tenant` says whose it is, and 0 is the model itself.

    dtype: float32, in which everything is computed, of weights held in the fewest bytes that are exact; bfloat16 or
    int8, to which matrices are rounded, and so are the rows that they are multiplied with (to bfloat16 only where the
    processor multiplies it by itself). The rest is fp32 in all of them. Without compiled kernels bfloat16 holds the
    cache, too, and there is no int8.

    The ranks of a TP group each hold a shard, and make the same calls. Only rank 0 reads the logits.

    tenant_bytes: memory that the weights of each tenant take in addition to the model's.

    ValueError in one sentence if a directory cannot be used.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        tenants: Sequence[str | Path] = (),
        dtype: torch.dtype = torch.float32,
        inflation: Inflation | None = None,
        tp_group: TPGroup | None = None,
        taps: FeatureTaps | None = None,
    ) -> None:
        self._tp_group = tp_group = tp_group or TPGroup()
        rank, size = tp_group.rank, tp_group.size
        self.spec, models = load_tenants(directory, tenants, rank=rank, size=size, inflation=inflation)
        self.dtype, self._taps = dtype, taps
        self._held = local_spec(self.spec, rank=rank, size=size)
        self._has_tenants = bool(tenants)
        self._layers = _layers_of(self._held, models, is_shared=bool(tenants), dtype=dtype, tp_group=tp_group)
        every = range(self.spec.num_layers)
        first_half, second_half = halves(every)
        self._ranges: Mapping[ForwardKind, Sequence[int]] = {
            ForwardKind.EXACT: every,
            ForwardKind.FIRST_HALF: first_half,
            ForwardKind.SECOND_HALF: second_half,
        }
        self._halfway = PendingHalf[Any]()
        self.has_own_threads, self.tenant_bytes = self._layers.has_own_threads, self._layers.weight_bytes[1:]

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache for this model; as long as its longest context unless `capacity` is given."""
        dtype = torch.float32 if isinstance(self._layers, KernelLayers) else self.dtype
        return KVCache(
            self._held,
            capacity=capacity or self.spec.max_position,
            dtype=dtype,
            key_block=self._layers.key_block,
            feature_size=self._taps.width if self._taps else 0,
        )

    def warm_up(self, max_rows: int, caches: Sequence[KVCache]) -> None:
        """Run up to so many rows, and all sizes that a prompt may need, to compile products. Caches stay empty."""
        # Of kernels pages are touched and threads started, no more.
        done: Sequence[int] = range(1, max_rows + 1) if self._layers.compiles_sizes else (max_rows,)
        cache = caches[0]
        for num_rows in done:
            rows = tuple(Row(0, row, 0) for row in range(num_rows))
            self.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, rows),)), caches)
            cache.reset()
        longest = min(self._layers.longest_piece, cache.capacity)
        sizes = pairwise((0, *PREFILL_SIZES)) if self._layers.compiles_sizes else [(longest - 1, longest)]
        for below, size in sizes:
            if size not in done and below < cache.capacity:
                self.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, (0,) * (below + 1)),)), caches)
                cache.reset()

    def forward(self, batch: ForwardBatch, caches: Sequence[KVCache]) -> BatchResult:
        """Logits after the entries of a batch, and its candidates; sequence s has the cache `caches[s]`.

        Products are computed for all rows together, attention for each sequence; of a long chunk only the last piece
        shares the forward. ValueError: if an entry does not suit its cache; nothing is changed then.
        """
        held = checked_caches(batch, caches, vocab_size=self.spec.vocab_size)
        order = self._order(held)
        forward: Any = self._halfway.take(batch, held)
        if forward is None:
            forward = self._layers.begin([self._input(batch.entries[index], held[index]) for index in order])
        if batch.kind is ForwardKind.LAYER_PARALLEL:
            self._layers.run_grouped(forward)
        else:
            self._run(forward, self._ranges[batch.kind])
        if batch.kind is ForwardKind.FIRST_HALF:
            self._halfway.hold(batch, held, forward)
        else:
            for sequence in forward.inputs:
                sequence.extend_cache()
        result = self._result(forward, batch.top_k)
        return result if isinstance(order, range) else _in_order(result, order)

    def check(self, batch: ForwardBatch, caches: Sequence[KVCache]) -> None:
        checked_caches(batch, caches, vocab_size=self.spec.vocab_size)

    def routes(self) -> Tensor | None:
        """Experts [layers, R, active] of the last forward, the likeliest first, by entries; None without experts.

        Of a chunk in several pieces they are those of the last piece. After a first half, only its layers count.
        """
        return self._layers.routes()

    def _run(self, forward: Any, layers: Sequence[int]) -> None:
        if self._taps is None:
            self._layers.run(forward, layers)
        else:
            self._taps.run(forward, layers, self._layers.run)

    def _order(self, caches: Sequence[KVCache]) -> Sequence[int]:
        """Order of the entries in a forward: those of a tenant are neighbours."""
        every = range(len(caches))
        if not self._has_tenants or all(first.tenant <= second.tenant for first, second in pairwise(caches)):
            return every
        return sorted(every, key=lambda index: caches[index].tenant)

    def _input(self, entry: Entry, cache: KVCache) -> SequenceInput:
        """An entry's rows. Of a long chunk all pieces but the last are computed here."""
        longest = self._layers.longest_piece
        while isinstance(entry, Chunk) and entry.num_rows > longest:
            rows = sequence_input(entry._replace(tokens=entry.tokens[:longest]), cache)
            self._run(self._layers.begin([rows]), self._ranges[ForwardKind.EXACT])
            rows.extend_cache()
            entry = entry._replace(tokens=entry.tokens[longest:])
        return sequence_input(entry, cache)

    def _result(self, forward: Any, top_k: int) -> BatchResult:
        logits = self._tp_group.gather(self._layers.logits(forward), self.spec.vocab_size).float()
        candidates = as_candidates(*top_candidates(logits, top_k)) if top_k else ()
        counts = [sequence.num_logits for sequence in forward.inputs]
        if len(counts) == 1:  # nothing to divide, which would cost a small draft 2 % of its time
            return BatchResult((logits,), (candidates,) if top_k else ())
        left = iter(candidates)
        divided = tuple(tuple(islice(left, count)) for count in counts)
        return BatchResult(tuple(logits.split(counts)), divided if top_k else ())


def _in_order(result: BatchResult, order: Sequence[int]) -> BatchResult:
    places = sorted(range(len(order)), key=order.__getitem__)
    logits = tuple(result.logits[place] for place in places)
    return BatchResult(logits, tuple(result.candidates[place] for place in places) if result.candidates else ())


def pads_prompts() -> bool:
    """Whether a decoder computes more rows of a prompt than there are, here: torch's does."""
    return load_library() is None


def _layers_of(
    spec: ModelSpec, models: Iterable[LoadedModel], *, is_shared: bool, dtype: torch.dtype, tp_group: TPGroup
) -> KernelLayers | TorchTenants:
    library, shared = load_library(), SharedWeights(is_shared=is_shared)
    if library is not None:
        return KernelLayers(spec, models, shared=shared, library=library, tp_group=tp_group, dtype=dtype)
    if dtype == torch.int8:
        raise FieldError("dtype", "'int8', for which there are compiled kernels only", "install a C++ compiler (g++)")
    return TorchTenants(spec, models, shared=shared, dtype=dtype, tp_group=tp_group)
