"""Inputs of a CPU decoder's layers: tokens, positions, visibility and cache of each sequence in a forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swiftspec.engine.model.forward_batch import Chunk, Entry
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.timing.steps import PREFILL_CHUNK

__all__ = ["SequenceInput", "sequence_input", "split_chunk"]


class SequenceInput(NamedTuple):
    """Rows of one sequence, and the cache to which they are appended.

    ancestors: bit s is tree slot s, see `Row`; None for rows of a prompt, which see themselves and those before.
    num_logits: logits are wanted of so many of the last rows.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    ancestors: Sequence[int] | None
    cache: KVCache
    num_logits: int


def sequence_input(entry: Entry, cache: KVCache) -> SequenceInput:
    """Input of a batch's entry."""
    if isinstance(entry, Chunk):
        first = cache.prefix_length
        return SequenceInput(entry.tokens, range(first, first + len(entry.tokens)), None, cache, entry.num_logits)
    tokens, positions, ancestors = zip(*entry.rows, strict=True)
    return SequenceInput(tokens, positions, ancestors, cache, len(tokens))


def split_chunk(chunk: Chunk) -> list[Chunk]:
    """The chunk in pieces of at most `PREFILL_CHUNK` tokens."""
    starts = range(0, chunk.num_rows, PREFILL_CHUNK)
    return [Chunk(chunk.sequence, chunk.tokens[start : start + PREFILL_CHUNK]) for start in starts]
