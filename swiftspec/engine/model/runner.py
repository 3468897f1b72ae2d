"""A decoder with its one cache, as a role's process or a recorder uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from swiftspec.artifacts.document import ModelRef
from swiftspec.devices.local import usable_device
from swiftspec.engine.model.cpu_model import CpuDecoder
from swiftspec.engine.model.gpu_model import GpuDecoder
from swiftspec.engine.model.gpu_weights import FORMATS
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.spec import Inflation, ModelSpec, model_directory
from swiftspec.policies.effects import Row

__all__ = ["DTYPES", "Cache", "Decoder", "ModelRunner"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}  # of a CPU


class Cache(Protocol):
    """A cache, as its owner sees it."""

    prefix_length: int
    tree_length: int

    def reset(self) -> None:
        """Forget everything."""

    def keep(self, slots: Sequence[int], num_verified: int) -> None:
        """Keep tree slots in this order; the first `num_verified` join the prefix."""


class Decoder(Protocol):
    """Common interface of `CpuDecoder` and `GpuDecoder`; each accepts only caches that it made."""

    spec: ModelSpec

    @property
    def has_own_threads(self) -> bool:
        """Whether forwards do without torch's threads."""

    def new_cache(self, capacity: int | None = None) -> Any:
        """An empty cache."""

    def warm_up(self, row_counts: Iterable[int], cache: Any) -> None:
        """Run forwards of these sizes, so that later ones take their usual time."""

    def prefill(self, tokens: Sequence[int], cache: Any) -> Tensor | None:
        """Append to the prefix; fp32 logits [V] after the last token."""

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        ancestors: Sequence[int],
        cache: Any,
        *,
        fuzzy: bool = False,
    ) -> Tensor:
        """Append to the tree; fp32 logits [R, V]."""

    def exit(self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: Any) -> Tensor:
        """The first half of a forward."""

    def finish(self, cache: Any) -> Tensor:
        """The other half."""

    def candidates(self, logits: Tensor, k: int, cache: Any) -> tuple[list[list[int]], list[list[float]]]:
        """The `k` most likely tokens after each row of the last forward, whose logits these are; and log-probs."""


class ModelRunner:
    """A decoder with a cache of one sequence."""

    def __init__(self, decoder: Decoder, cache: Cache) -> None:
        self._decoder = decoder
        self._cache = cache

    @classmethod
    def load(
        cls,
        reference: ModelRef,
        *,
        max_context: int,
        tree_slots: int,
        device: str = "cpu",
        tp_group: TPGroup | None = None,
    ) -> ModelRunner:
        """A model with room for `max_context` tokens and `tree_slots` tree nodes after them, on `cpu` or `cuda:N`.

        In a TP group, this rank's shard of it: all ranks load, warm up and run it together. A GPU must be the current
        one. ValueError, in one sentence, if the model, its inflation or the device cannot be used.
        """
        place = usable_device(device)
        formats = DTYPES if place.type == "cpu" else FORMATS
        if reference.dtype not in formats:
            raise ValueError(f"dtype is {reference.dtype!r}; expected one of {', '.join(formats)} on {place.type}")
        directory = model_directory(reference.model)
        inflation = Inflation.parse(reference.inflate) if reference.inflate else None
        capacity = max_context + tree_slots
        if place.type == "cpu":
            decoder = CpuDecoder.load(directory, dtype=DTYPES[reference.dtype], inflation=inflation, tp_group=tp_group)
            return cls(decoder, decoder.new_cache(capacity))
        try:
            weight_format = FORMATS[reference.dtype]
            static = GpuDecoder.load(
                directory, weight_format=weight_format, device=place, inflation=inflation, tp_group=tp_group
            )
            return cls(static, static.new_cache(capacity, tree_slots=tree_slots))
        except torch.OutOfMemoryError:
            raise ValueError(f"{reference} with {capacity} slots does not fit into the memory of {place}") from None

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return self._decoder.spec.vocab_size

    @property
    def has_own_threads(self) -> bool:
        """Whether forwards do without torch's threads, which would spin beside theirs after every other operation."""
        return self._decoder.has_own_threads

    def reset(self) -> None:
        """Forget every cached token."""
        self._cache.reset()

    def warm_up(self, max_rows: int) -> None:
        """Run every size once: the first forward compiles its products, allocates its buffers or is captured."""
        self._decoder.warm_up(range(1, max_rows + 1), self._cache)

    def prefill(self, tokens: Sequence[int]) -> Tensor:
        """Put tokens, at least one, into the prefix; fp32 logits (vocab,) after the last one."""
        logits = self._decoder.prefill(tokens, self._cache)
        assert logits is not None, "prefill needs at least one token"
        return logits

    def forward(self, rows: Sequence[Row], *, fuzzy: bool = False) -> Tensor:
        """Append rows to the tree; fp32 logits (rows, vocab), valid until the next call. `fuzzy`: layers in groups."""
        tokens, positions, ancestors = zip(*rows, strict=True)
        return self._decoder.forward(tokens, positions, ancestors, self._cache, fuzzy=fuzzy)

    def exit(self, rows: Sequence[Row]) -> Tensor:
        """The first half of a forward: its fp32 logits (rows, vocab)."""
        tokens, positions, ancestors = zip(*rows, strict=True)
        return self._decoder.exit(tokens, positions, ancestors, self._cache)

    def finish(self) -> Tensor:
        """The other half: the forward's fp32 logits (rows, vocab)."""
        return self._decoder.finish(self._cache)

    def candidates(self, logits: Tensor, num_candidates: int) -> tuple[list[list[int]], list[list[float]]]:
        """Most likely tokens after each row of the last forward, or half of one, and their natural log-probs."""
        return self._decoder.candidates(logits, num_candidates, self._cache)

    def keep(self, slots: Sequence[int], num_verified: int) -> None:
        """Keep tree slots in this order; the first `num_verified` join the prefix."""
        self._cache.keep(slots, num_verified)
