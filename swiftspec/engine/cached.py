"""A decoder with its one cache: what a role's process, or a recorder, drives."""

from collections.abc import Sequence

import torch
from torch import Tensor

from swiftspec.documents import ModelRef
from swiftspec.engine.cache import KVCache
from swiftspec.engine.model import Decoder
from swiftspec.policies.effects import Row
from swiftspec.specs import Inflation, model_directory

__all__ = ["DTYPES", "CachedDecoder"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CachedDecoder:
    """One sequence at a time."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder = decoder
        self._cache = cache

    @classmethod
    def load(cls, reference: ModelRef, *, max_context: int, tree_slots: int) -> "CachedDecoder":
        """A model with room for `max_context` tokens and `tree_slots` tree nodes behind them.

        ValueError, in one sentence, if the model or its inflation cannot be used.
        """
        if reference.dtype not in DTYPES:
            raise ValueError(f"dtype is {reference.dtype!r}; expected one of {', '.join(DTYPES)}")
        decoder = Decoder.load(
            model_directory(reference.model),
            dtype=DTYPES[reference.dtype],
            inflation=Inflation.parse(reference.inflate) if reference.inflate else None,
        )
        return cls(decoder, decoder.new_cache(max_context + tree_slots))

    def reset(self) -> None:
        """Forget every cached token."""
        self._cache.reset()

    def warm_up(self, max_rows: int) -> None:
        """Run every row count once: the first forward of a shape compiles its products and makes its buffers."""
        self._decoder.warm_up(range(1, max_rows + 1), self._cache)

    def prefill(self, tokens: Sequence[int]) -> Tensor:
        """Put tokens, at least one, into the prefix; fp32 logits (vocab,) after the last one."""
        logits = self._decoder.prefill(tokens, self._cache)
        assert logits is not None, "a prefill has tokens"
        return logits

    def forward(self, rows: Sequence[Row], *, fuzzy: bool = False) -> Tensor:
        """Append rows to the tree; fp32 logits (rows, vocab). `fuzzy`: layers in groups."""
        tokens, positions, ancestors = zip(*rows, strict=True)
        return self._decoder.forward(tokens, positions, ancestors, self._cache, fuzzy=fuzzy)

    def exit(self, rows: Sequence[Row]) -> Tensor:
        """The first half of a forward: its fp32 logits (rows, vocab)."""
        tokens, positions, ancestors = zip(*rows, strict=True)
        return self._decoder.exit(tokens, positions, ancestors, self._cache)

    def finish(self) -> Tensor:
        """The other half: the forward's fp32 logits (rows, vocab)."""
        return self._decoder.finish(self._cache)

    def keep(self, slots: Sequence[int], num_verified: int) -> None:
        """Keep tree slots in this order; the first `num_verified` join the prefix."""
        self._cache.keep(slots, num_verified)
