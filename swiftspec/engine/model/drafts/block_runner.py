"""A block drafter with the caches of its sequences: `Model` of a draft that answers at masks, all at once.

What it knows of verified tokens is made of the target's features, when they are first needed; tokens themselves are
only counted. A forward has the tokens verified last, then masks: the answer after the last token and those after the
masks are the block's. In the block itself, as in DFlash's checkpoints, a mask answers for its own place, and sees those
after it; so a whole block is computed however few rows there are. Rows beyond the block are answered as its last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.drafts.block_layers import BlockLayers
from swiftspec.engine.model.drafts.features import Features
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Model, Rows, as_candidates
from swiftspec.engine.model.kv_cache import KVCache, cache_of
from swiftspec.engine.model.sampling.sampler import top_candidates
from swiftspec.policies.effects import ForwardKind, Row

__all__ = ["BlockRunner"]


@dataclass(slots=True)
class _Sequence:
    """A sequence: keys and values of the tokens read so far, the target's cache, and the draft's own counts."""

    own: KVCache
    target: Features
    num_read: int = 0
    prefix_length: int = 0
    tree_length: int = 0


class _Block(NamedTuple):
    """The last verified token of a forward's rows, its position, and how many rows come before and after it."""

    token: int
    position: int
    num_before: int
    num_masks: int


class BlockRunner(Model):
    """A block drafter beside its target.

    target: the target's cache of each sequence, with features. capacity: slots of a sequence's cache. dtype: dtype of
    the cache.
    """

    has_own_threads = False
    tenant_bytes: tuple[int, ...] = ()

    def __init__(self, layers: BlockLayers, target: Sequence[Features], *, capacity: int, dtype: torch.dtype) -> None:
        self._layers = layers
        self._mask_token, self._block_size = layers.spec.mask_token, layers.spec.block_size
        self.vocab_size = layers.spec.layers.vocab_size
        self._sequences = [
            _Sequence(KVCache(layers.spec.layers, capacity=capacity + self._block_size, dtype=dtype), cache)
            for cache in target
        ]

    def warm_up(self, max_rows: int) -> None:
        """Run every size once: the first forward compiles its products."""
        for num_rows in range(1, max_rows + 1):
            rows = tuple(Row(self._mask_token if slot else 0, slot, (1 << slot) - 1) for slot in range(num_rows))
            self.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, rows),)))
            self.reset(0)

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Compute a batch, a sequence after the other. Rows of verified tokens but the last one answer as the last."""
        logits = tuple(self._logits(entry) for entry in batch.entries)
        if not batch.top_k:
            return BatchResult(logits)
        return BatchResult(logits, tuple(as_candidates(*top_candidates(each, batch.top_k)) for each in logits))

    def check(self, batch: ForwardBatch) -> None:
        for entry in batch.entries:
            held = cache_of(entry.sequence, self._sequences)
            if isinstance(entry, Rows):
                self._block(entry, held)

    def keep(self, sequence: int, slots: Sequence[int], num_verified: int) -> None:
        held = cache_of(sequence, self._sequences)
        held.prefix_length += num_verified
        held.tree_length = len(slots) - num_verified

    def reset(self, sequence: int, _tenant: int = 0, /) -> None:
        """Forget every token of a sequence; all tenants of a target share the drafter."""
        held = cache_of(sequence, self._sequences)
        held.num_read = held.prefix_length = held.tree_length = 0

    def _logits(self, entry: Entry) -> Tensor:
        held = cache_of(entry.sequence, self._sequences)
        if isinstance(entry, Chunk):
            held.prefix_length += len(entry.tokens)
            return torch.zeros(entry.num_logits, self.vocab_size)
        block = self._block(entry, held)
        self._read(held, block.position)
        tokens = [block.token, *[self._mask_token] * (self._block_size - 1)]
        held.tree_length += len(entry.rows)
        answers = self._layers.forward(tokens, held.own, first=block.position)[1:]
        last = len(answers) - 1
        return answers[[0] * block.num_before + [min(number, last) for number in range(block.num_masks + 1)]]

    def _block(self, entry: Rows, held: _Sequence) -> _Block:
        """The block of some rows. ValueError unless each of them sees all before it.

        Masks are those at the end. A text that itself ends with the mask costs a guess, no more.
        """
        first = held.prefix_length + held.tree_length
        last = max((i for i, row in enumerate(entry.rows) if row.token != self._mask_token), default=0)
        is_chain = all(
            row.position == first + index and row.ancestors == (1 << held.tree_length + index) - 1
            for index, row in enumerate(entry.rows)
        )
        if not is_chain:
            raise ValueError(
                f"sequence {entry.sequence}: rows are no chain of tokens and then masks, which is all that a block "
                "drafter computes"
            )
        return _Block(entry.rows[last].token, first + last, last, len(entry.rows) - 1 - last)

    def _read(self, held: _Sequence, num_tokens: int) -> None:
        """Make the keys and values of the first tokens. ValueError if the target has not verified them all."""
        if held.target.prefix_length < num_tokens:
            raise ValueError(
                f"the last token of the text is at position {num_tokens}, but the target has verified only "
                f"{held.target.prefix_length} tokens"
            )
        if held.num_read < num_tokens:
            self._layers.read(held.target.features[held.num_read : num_tokens], held.own, first=held.num_read)
            held.num_read = num_tokens
