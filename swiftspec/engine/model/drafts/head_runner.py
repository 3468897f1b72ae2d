"""A head with the caches of its sequences: `Model` of a draft that reads its target's features.

The row of the token at position p reads what precedes it: the target's feature of position p - 1 if the target has
verified it, else the head's own hidden state of the row's parent. So nothing precedes the first token of a text, and
heads have no row for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.attention import SequenceInput, sequence_input
from swiftspec.engine.model.drafts.features import Features
from swiftspec.engine.model.drafts.head_layers import HeadKernels, HeadLayers
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Model, Rows, as_candidates
from swiftspec.engine.model.kv_cache import KVCache, cache_of, checked_caches
from swiftspec.engine.model.sampling.sampler import top_candidates
from swiftspec.policies.effects import ForwardKind, Row
from swiftspec.timing.steps import PREFILL_CHUNK


@dataclass(slots=True)
class _Sequence:
    """A sequence's cache, whose features are the head's own hidden states, and the target's."""

    own: KVCache
    target: Features
    num_verified: int = 0  # tokens; the first one has no slot, unless it was a row


class _Input(NamedTuple):
    """Rows of one sequence. sources: position of a feature, `~slot` of an own hidden state, or None for nothing."""

    sequence: _Sequence
    rows: SequenceInput
    sources: Sequence[int | None]


class HeadRunner(Model):
    """A head. target: its target's cache of each sequence, or the store of what came from another process."""

    tenant_bytes: tuple[int, ...] = ()

    def __init__(
        self, layers: HeadLayers | HeadKernels, target: Sequence[Features], *, capacity: int, dtype: torch.dtype
    ) -> None:
        self._layers = layers
        spec = layers.spec.layer
        self.has_own_threads = layers.has_own_threads
        self.vocab_size = spec.vocab_size
        self._caches = [
            KVCache(spec, capacity=capacity, dtype=dtype, key_block=layers.key_block, feature_size=spec.hidden_size)
            for _ in target
        ]
        self._sequences = list(map(_Sequence, self._caches, target))
        self.target = target

    def warm_up(self, max_rows: int) -> None:
        for num_rows in range(1, max_rows + 1):
            self.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, (Row(0, 0, 0),) * num_rows),)))
            self.reset(0)

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Compute a batch. A row whose parent is in the same batch, and unverified, reads what its parent reads."""
        self.check(batch)
        return self._computed([self._input(entry) for entry in batch.entries], batch.top_k)

    def check(self, batch: ForwardBatch) -> None:
        checked_caches(batch, self._caches, vocab_size=self.vocab_size)

    def keep(self, sequence: int, slots: Sequence[int], num_verified: int) -> None:
        cache_of(sequence, self._caches).keep(slots, num_verified)
        self._sequences[sequence].num_verified += num_verified

    def reset(self, sequence: int, _tenant: int = 0, /) -> None:
        """Forget every cached token of a sequence; all tenants of a target share the head."""
        cache_of(sequence, self._caches).reset()
        self._sequences[sequence].num_verified = 0

    def ahead(self, sequence: int, rows: Sequence[Row], parents: Sequence[int]) -> Tensor:
        """Logits [R, V] of rows that become tree nodes and read the own hidden states of tree slots `parents`."""
        held = self._sequences[sequence]
        sources = [~(held.own.prefix_length + slot) for slot in parents]
        inputs = _Input(held, sequence_input(Rows(sequence, tuple(rows)), held.own), sources)
        return self._computed([inputs], 0).logits[0]

    def _input(self, entry: Entry) -> _Input:
        """An entry's rows. Of a long chunk all pieces but the last are computed here."""
        sequence = self._sequences[entry.sequence]
        if isinstance(entry, Rows):
            return _Input(sequence, sequence_input(entry, sequence.own), _sources(sequence, entry.rows))
        *pieces, last = _pieces(sequence, entry)
        for piece in pieces:
            self._hidden([piece])
        return last

    def _computed(self, inputs: Sequence[_Input], top_k: int) -> BatchResult:
        counts = [each.rows.num_logits for each in inputs]
        computed = [each for each in inputs if each.rows.tokens]
        if not computed:
            return BatchResult(tuple(torch.empty(0, self.vocab_size) for _ in inputs), ((),) * len(inputs))
        logits = self._layers.logits([each.rows for each in computed], self._hidden(computed))
        every, known = logits, self._layers.tokens
        if known is not None:  # tokens that the head cannot propose have -inf
            every = logits.new_full((len(logits), self.vocab_size), -math.inf).index_copy_(1, known, logits)
        spread = every.split(counts)
        if not top_k:
            return BatchResult(tuple(spread))
        tokens, log_probs = top_candidates(logits, top_k)
        if known is not None:
            tokens = known[torch.tensor(tokens, dtype=torch.long)].tolist()
        left = iter(as_candidates(tokens, log_probs))
        return BatchResult(tuple(spread), tuple(tuple(islice(left, count)) for count in counts))

    def _hidden(self, inputs: Sequence[_Input]) -> Tensor:
        """Hidden states of all rows, which are in the caches then."""
        before = [self._before(each) for each in inputs]
        rows = [each.rows for each in inputs]
        hidden = self._layers.forward(rows, before[0] if len(before) == 1 else torch.cat(before))
        carried, end = self._layers.carried(hidden), 0
        for each in rows:
            first, end, own = end, end + len(each.tokens), each.cache
            own.features[own.length : own.length + end - first] = carried[first:end]
            each.extend_cache()
        return hidden

    def _before(self, inputs: _Input) -> Tensor:
        """What precedes each row, [R, hidden]."""
        sequence, sources, num_rows = inputs.sequence, inputs.sources, len(inputs.rows.tokens)
        known = [(index, source) for index, source in enumerate(sources) if source is not None and source >= 0]
        own = [(index, ~source) for index, source in enumerate(sources) if source is not None and source < 0]
        if len(known) == num_rows:
            return self._layers.fused(sequence.target.features[torch.tensor(sources)])
        if len(own) == num_rows:
            return sequence.own.features[torch.tensor([slot for _, slot in own])]
        before = torch.zeros(num_rows, self._layers.spec.layer.hidden_size)
        if known:
            places, positions = torch.tensor(known).T
            before[places] = self._layers.fused(sequence.target.features[positions])
        if own:
            places, slots = torch.tensor(own).T
            before[places] = sequence.own.features[slots]
        return before


def _sources(sequence: _Sequence, rows: Sequence[Row]) -> list[int | None]:
    prefix_length, tree_length = sequence.own.prefix_length, sequence.own.tree_length
    sources: list[int | None] = []
    for index, row in enumerate(rows):
        parent = (row.ancestors & ((1 << tree_length + index) - 1)).bit_length() - 1
        if 0 < row.position <= sequence.target.prefix_length:
            sources.append(row.position - 1)
        elif parent >= tree_length:
            sources.append(sources[parent - tree_length])
        elif prefix_length + parent >= 0:
            sources.append(~(prefix_length + parent))
        else:
            sources.append(None)
    return sources


def _pieces(sequence: _Sequence, chunk: Chunk) -> list[_Input]:
    """A chunk in pieces of at most `PREFILL_CHUNK` tokens, of which the first piece may be empty."""
    first, tokens = sequence.num_verified, chunk.tokens
    sequence.num_verified += len(tokens)
    num_known = sequence.target.prefix_length
    if sequence.num_verified - 1 > num_known:
        raise ValueError(
            f"sequence {chunk.sequence}: a token at position {sequence.num_verified - 1} follows the "
            f"{num_known} that the target has verified"
        )
    if first == 0:
        first, tokens = 1, tokens[1:]
    pieces = []
    for start in range(0, max(1, len(tokens)), PREFILL_CHUNK):
        part = tokens[start : start + PREFILL_CHUNK]
        positions = range(first + start, first + start + len(part))
        rows = SequenceInput(part, positions, None, sequence.own, min(1, len(part)))
        pieces.append(_Input(sequence, rows, [position - 1 for position in positions]))
    return pieces
