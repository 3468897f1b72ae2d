"""A head with the caches of its sequences: `protocol.Model` of a draft that reads its target's features.

The row of the token at position p reads what precedes it: the target's feature of position p - 1 if the target has
verified it, else the head's own hidden state of the row's parent. So nothing precedes the first token of a text, and
heads have no row for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from swiftspec.artifacts.steps import PREFILL_CHUNK
from swiftspec.engine.model.attention import Visibility, causal_visibility, tree_visibility
from swiftspec.engine.model.batch_caches import cache_of, checked_caches
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Rows, as_candidates
from swiftspec.engine.model.head_layers import HeadLayers, HeadRows
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.runner import Cache
from swiftspec.engine.model.sampler import top_candidates
from swiftspec.policies.effects import ForwardKind, Row

__all__ = ["HeadRunner"]


@dataclass(slots=True)
class _Sequence:
    """A sequence's cache, whose features are the head's own hidden states, and the target's."""

    own: KVCache
    target: Cache
    num_verified: int = 0  # tokens; the first one has no slot, unless it was a row

    @property
    def num_known(self) -> int:
        """Positions whose features the target has."""
        return self.target.prefix_length


class _Input(NamedTuple):
    """Rows of one sequence. sources: position of a feature, `~slot` of an own hidden state, or None for nothing."""

    sequence: _Sequence
    tokens: Sequence[int]
    positions: Sequence[int]
    sources: Sequence[int | None]
    visible: Visibility
    is_prompt: bool

    @property
    def num_logits(self) -> int:
        """Logits are wanted of so many of the last rows."""
        return min(1, len(self.tokens)) if self.is_prompt else len(self.tokens)


class HeadRunner:
    """A head beside its target.

    Parameters
    ----------
    layers : HeadLayers
    target : sequence of Cache
        The target's cache of each sequence, with features.
    capacity : int
        Slots of a sequence's cache.
    dtype : torch.dtype
        Of the cache.
    """

    has_own_threads = False
    tenant_bytes: tuple[int, ...] = ()

    def __init__(self, layers: HeadLayers, target: Sequence[Cache], *, capacity: int, dtype: torch.dtype) -> None:
        self._layers = layers
        spec = layers.spec.layer
        self.vocab_size = spec.vocab_size
        self._sequences = [
            _Sequence(KVCache(spec, capacity=capacity, dtype=dtype, feature_size=spec.hidden_size), cache)
            for cache in target
        ]
        self._caches = [sequence.own for sequence in self._sequences]

    def warm_up(self, max_rows: int) -> None:
        """Run every size once: the first forward compiles its products."""
        for num_rows in range(1, max_rows + 1):
            self.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, (Row(0, 0, 0),) * num_rows),)))
            self.reset(0)

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Compute a batch: rows are appended to their sequences' trees, chunks to the prefixes.

        A row whose parent is in the same batch, and unverified, reads what its parent reads.
        """
        checked_caches(batch, self._caches)
        return self._computed([self._input(entry) for entry in batch.entries], batch.top_k)

    def keep(self, sequence: int, slots: Sequence[int], num_verified: int) -> None:
        """Keep tree slots of a sequence in this order; the first `num_verified` join the prefix."""
        cache_of(sequence, self._caches).keep(slots, num_verified)
        self._sequences[sequence].num_verified += num_verified

    def reset(self, sequence: int, tenant: int = 0) -> None:  # noqa: ARG002 - of the protocol; tenants share a head
        """Forget every cached token of a sequence; all tenants of a target share the head."""
        cache_of(sequence, self._caches).reset()
        self._sequences[sequence].num_verified = 0

    def ahead(self, sequence: int, rows: Sequence[Row], parents: Sequence[int]) -> Tensor:
        """Logits [R, V] of rows that become tree nodes and read the hidden states of tree slots `parents`.

        So the head drafts on its own, whatever the target has verified.
        """
        held = self._sequences[sequence]
        visible = tree_visibility([row.ancestors for row in rows], held.own.tree_length)
        sources = [~(held.own.prefix_length + slot) for slot in parents]
        tokens, positions, _ = zip(*rows, strict=True)
        return self._computed([_Input(held, tokens, positions, sources, visible, is_prompt=False)], 0).logits[0]

    def _input(self, entry: Entry) -> _Input:
        """An entry's rows. Of a long chunk all pieces but the last are computed here."""
        sequence = self._sequences[entry.sequence]
        if isinstance(entry, Rows):
            tokens, positions, ancestors = zip(*entry.rows, strict=True)
            visible = tree_visibility(ancestors, sequence.own.tree_length)
            return _Input(sequence, tokens, positions, _sources(sequence, entry.rows), visible, is_prompt=False)
        *pieces, last = _pieces(sequence, entry)
        for piece in pieces:
            self._hidden([piece])
        return last

    def _computed(self, inputs: Sequence[_Input], top_k: int) -> BatchResult:
        hidden, end = self._hidden(inputs), 0
        wanted: list[int] = []
        for each in inputs:
            end += len(each.tokens)
            wanted += range(end - each.num_logits, end)
        if len(wanted) < len(hidden):
            hidden = hidden.index_select(0, torch.tensor(wanted))
        logits = self._layers.logits(hidden)
        counts = [each.num_logits for each in inputs]
        spread = self._layers.spread(logits).split(counts)
        if not top_k:
            return BatchResult(spread)
        tokens, log_probs = top_candidates(logits, top_k)
        if self._layers.tokens is not None:
            tokens = self._layers.tokens[torch.tensor(tokens, dtype=torch.long)].tolist()
        left = iter(as_candidates(tokens, log_probs))
        return BatchResult(spread, tuple(tuple(next(left) for _ in range(count)) for count in counts))

    def _hidden(self, inputs: Sequence[_Input]) -> Tensor:
        """Hidden states of all rows, which are in the caches then."""
        tokens = [token for each in inputs for token in each.tokens]
        positions = [position for each in inputs for position in each.positions]
        if not tokens:
            return torch.empty(0, self._layers.spec.layer.hidden_size)
        before = [self._before(each) for each in inputs]
        parts = [HeadRows(len(each.tokens), each.sequence.own, each.visible) for each in inputs if each.tokens]
        hidden = self._layers.forward(tokens, positions, torch.cat(before) if len(before) > 1 else before[0], parts)
        carried, end = self._layers.carried(hidden), 0
        for each in inputs:
            first, end, own = end, end + len(each.tokens), each.sequence.own
            own.features[own.length : own.length + end - first] = carried[first:end]
            if each.is_prompt:
                own.extend_prefix(end - first)
            else:
                own.extend_tree(end - first)
        return hidden

    def _before(self, rows: _Input) -> Tensor:
        """What precedes each row, [R, hidden]."""
        known = [(index, source) for index, source in enumerate(rows.sources) if source is not None and source >= 0]
        own = [(index, ~source) for index, source in enumerate(rows.sources) if source is not None and source < 0]
        if len(known) == len(rows.tokens):
            return self._layers.fused(rows.sequence.target.features[torch.tensor(rows.sources)])
        if len(own) == len(rows.tokens):
            return rows.sequence.own.features[torch.tensor([slot for _, slot in own])]
        before = torch.zeros(len(rows.tokens), self._layers.spec.layer.hidden_size)
        if known:
            places, positions = torch.tensor(known).T
            before[places] = self._layers.fused(rows.sequence.target.features[positions])
        if own:
            places, slots = torch.tensor(own).T
            before[places] = rows.sequence.own.features[slots]
        return before


def _sources(sequence: _Sequence, rows: Sequence[Row]) -> list[int | None]:
    prefix_length, tree_length = sequence.own.prefix_length, sequence.own.tree_length
    sources: list[int | None] = []
    for index, row in enumerate(rows):
        parent = (row.ancestors & ((1 << tree_length + index) - 1)).bit_length() - 1
        if 0 < row.position <= sequence.num_known:
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
    if sequence.num_verified - 1 > sequence.num_known:
        raise ValueError(
            f"sequence {chunk.sequence}: a token at position {sequence.num_verified - 1} follows the "
            f"{sequence.num_known} that the target has verified"
        )
    if first == 0:
        first, tokens = 1, tokens[1:]
    pieces = []
    for start in range(0, max(1, len(tokens)), PREFILL_CHUNK):
        part = tokens[start : start + PREFILL_CHUNK]
        positions = range(first + start, first + start + len(part))
        before = [position - 1 for position in positions]
        pieces.append(_Input(sequence, part, positions, before, causal_visibility(len(part)), is_prompt=True))
    return pieces
