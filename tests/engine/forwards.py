"""Forwards of one sequence by a decoder, for tests that are not about batches."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, ForwardBatch, Rows
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.runner import Decoder
from swiftspec.policies.effects import Candidates, ForwardKind, Row

EXACT = ForwardKind.EXACT


def by_slot(cache: KVCache) -> Tensor:
    """Keys and values [layers, 2, kv_heads, slots, head_dim], those of a slot together."""
    data, block = cache.data, cache.key_block
    transposed = data[:, 0].unflatten(2, (-1, block)).view(*data.shape[:1], data.shape[2], -1, data.shape[4], block)
    return torch.stack([transposed.transpose(-1, -2).reshape(data[:, 0].shape), data[:, 1]], 1)


def prefill(decoder: Decoder, tokens: Iterable[int], cache: Any) -> Tensor:
    """Append to the prefix; logits [V] after the last token."""
    return decoder.forward(ForwardBatch(EXACT, (Chunk(0, tuple(tokens)),)), (cache,)).logits[0][0]


def forward(
    decoder: Decoder,
    tokens: Sequence[int],
    positions: Sequence[int],
    ancestors: Sequence[int],
    cache: Any,
    *,
    kind: ForwardKind = EXACT,
) -> Tensor:
    """Append to the tree; logits [R, V]."""
    return _forward(decoder, (tokens, positions, ancestors), cache, kind).logits[0]


def candidates(
    decoder: Decoder,
    rows: tuple[Sequence[int], Sequence[int], Sequence[int]],
    cache: Any,
    top_k: int,
    *,
    kind: ForwardKind = EXACT,
) -> tuple[Candidates, ...]:
    """The same rows' candidates."""
    return _forward(decoder, rows, cache, kind, top_k).candidates[0]


def _forward(
    decoder: Decoder, rows: tuple[Sequence[int], ...], cache: Any, kind: ForwardKind, top_k: int = 0
) -> BatchResult:
    entry = Rows(0, tuple(Row(*row) for row in zip(*rows, strict=True)))
    return decoder.forward(ForwardBatch(kind, (entry,), top_k), (cache,))
