"""Inputs of a CPU decoder's layers: tokens, positions, visibility and cache of each sequence in a forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swiftspec.artifacts.steps import PREFILL_CHUNK
from swiftspec.engine.model.attention import Visibility, causal_visibility, tree_visibility
from swiftspec.engine.model.forward_batch import Chunk, Entry
from swiftspec.engine.model.kv_cache import KVCache

__all__ = ["SequenceInput", "split_chunk"]


class SequenceInput(NamedTuple):
    """Rows of one sequence, and the cache to which they are appended.

    visible: slots after the prefix that each row sees, 0 or 1, [R, tree_length + R]. num_logits: the last rows, as many
    as logits are wanted of.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    visible: Visibility
    cache: KVCache
    is_prompt: bool
    num_logits: int

    @classmethod
    def of(cls, entry: Entry, cache: KVCache) -> SequenceInput:
        """A batch's entry."""
        if isinstance(entry, Chunk):
            first, num_rows = cache.prefix_length, len(entry.tokens)
            return cls(entry.tokens, range(first, first + num_rows), causal_visibility(num_rows), cache, True, 1)
        tokens, positions, ancestors = zip(*entry.rows, strict=True)
        return cls(tokens, positions, tree_visibility(ancestors, cache.tree_length), cache, False, len(tokens))

    def extend_cache(self) -> None:
        """Count the rows, now that they are written: a prompt's as prefix, others as nodes."""
        if self.is_prompt:
            self.cache.extend_prefix(len(self.tokens))
        else:
            self.cache.extend_tree(len(self.tokens))


def split_chunk(chunk: Chunk) -> list[Chunk]:
    """The chunk in pieces of at most `PREFILL_CHUNK` tokens."""
    starts = range(0, chunk.num_rows, PREFILL_CHUNK)
    return [Chunk(chunk.sequence, chunk.tokens[start : start + PREFILL_CHUNK]) for start in starts]
