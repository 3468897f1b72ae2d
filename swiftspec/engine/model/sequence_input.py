"""Inputs of a CPU decoder's layers: tokens, positions, visibility and cache of each sequence in a forward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from swiftspec.artifacts.steps import PREFILL_CHUNK
from swiftspec.engine.model.attention import Visibility, causal_visibility, tree_visibility
from swiftspec.engine.model.forward_batch import Chunk, Entry, Rows
from swiftspec.engine.model.kv_cache import KVCache

__all__ = ["SequenceInput", "rows_with_logits", "split_chunk"]


class SequenceInput(NamedTuple):
    """Rows of one sequence, and the cache to which they are appended.

    visible: slots after the prefix that each row sees, 0 or 1, [R, tree_length + R].
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    visible: Visibility
    cache: KVCache
    is_prompt: bool = False

    @classmethod
    def of(cls, entry: Entry, cache: KVCache) -> SequenceInput:
        """A batch's entry. ValueError for ancestors that are not in the tree."""
        if isinstance(entry, Chunk):
            first, num_rows = cache.prefix_length, entry.num_rows
            return cls(entry.tokens, range(first, first + num_rows), causal_visibility(num_rows), cache, is_prompt=True)
        tokens, positions, ancestors = zip(*entry.rows, strict=True)
        return cls(tokens, positions, tree_visibility(ancestors, cache.tree_length), cache)


def split_chunk(chunk: Chunk) -> list[Chunk]:
    """The chunk in pieces of at most `PREFILL_CHUNK` tokens."""
    starts = range(0, chunk.num_rows, PREFILL_CHUNK)
    return [Chunk(chunk.sequence, chunk.tokens[start : start + PREFILL_CHUNK]) for start in starts]


def rows_with_logits(entries: Iterable[Entry]) -> list[int]:
    """Numbers of the rows, counted over all entries, that have logits."""
    rows: list[int] = []
    end = 0
    for entry in entries:
        start, end = end, end + entry.num_rows
        rows += range(start, end) if isinstance(entry, Rows) else [end - 1]
    return rows
