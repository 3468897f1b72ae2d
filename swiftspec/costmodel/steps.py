"""Steps of any size on a group of devices, composed of the op tables: prompts' chunks beside requests that decode."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import ceil, floor, log2
from typing import Final

from swiftspec.costmodel.forward import forward_parts
from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.models.heads import Product
from swiftspec.models.spec import ModelSpec

# Parts whose time follows from what every sequence has in its cache; all others follow from the rows alone.
_OF_SEQUENCES: Final = frozenset({"attention", "indexer", "recurrence"})
_FEW, _EIGHT, _LARGE = 8, 512, 64  # rows: single sizes, then multiples of 8 up to so many, then of 64
_CHUNK, _BEFORE = 64, 512  # tokens to which a chunk and what it follows are rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Work of one step."""

    sequences: int = 0  # requests that decode
    rows_each: int = 1  # rows of each of them: 1, or 1 + K where K draft tokens are verified
    cache_tokens: int = 0  # tokens in the caches of all of them together
    chunks: Sequence[tuple[int, int]] = ()  # tokens that are read of each prompt, and those of it that were read before
    sampled: int = 0  # rows that get logits

    @property
    def rows(self) -> int:
        """Rows of all sequences and prompts."""
        return self.sequences * self.rows_each + sum(tokens for tokens, _ in self.chunks)

    def of_fullest(self, ranks: int) -> "StepWork":
        """The work of the fullest of so many ranks: requests are spread evenly, prompts go to whoever reads least."""
        if ranks == 1:
            return self
        read: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        for chunk in sorted(self.chunks, reverse=True):
            min(read, key=_tokens).append(chunk)
        sequences = -(-self.sequences // ranks)
        return replace(
            self,
            sequences=sequences,
            cache_tokens=self.cache_tokens * sequences // max(1, self.sequences),
            chunks=max(read, key=_tokens),
            sampled=-(-self.sampled // ranks),
        )


@dataclass(kw_only=True)
class ComposedSteps:
    """Seconds that devices need for a model's steps.

    Rows are composed at single sizes up to 8, then at multiples of 8, and from 512 at multiples of 64; caches at powers
    of the square root of 2, with a straight line between them, on which attention lies.
    """

    spec: ModelSpec
    kernels: Kernels
    quant: str  # format of the weights
    degree: int  # devices of the group
    kv_dtype: str = "bf16"  # bf16 or fp8
    collective: str | None = None  # the engine's own all-reduce; the fastest known one if not given
    products: Sequence[Product] = field(default_factory=tuple)  # of a head, beside those of its layers

    def __post_init__(self) -> None:
        self._ranks = self.spec.attention_ranks
        if self.collective not in self.kernels.collectives(self.degree // self._ranks):
            self.collective = None
        self._parts = partial(
            forward_parts,
            self.spec,
            kernels=self.kernels,
            quant=self.quant,
            degree=self.degree,
            collective=self.collective,
            kv_dtype=self.kv_dtype,
            products=self.products,
        )
        self._linear = cache(self._linear_s)
        self._attending = cache(self._attending_s)

    def seconds(self, work: StepWork) -> float:
        """Seconds of a step; 0 if it has nothing to compute. Ranks wait for the one with most work."""
        rows, fullest = work.rows, work.of_fullest(self._ranks)
        if not rows:
            return 0.0
        independent = rows if work.chunks or work.rows_each == 1 else work.sequences
        padded = composed_rows(rows)
        sampled = min(padded, composed_rows(max(1, work.sampled)))
        of_rank = composed_rows(fullest.rows)
        total = self._linear(padded, sampled, max(1, padded // (rows // independent)), of_rank)
        if fullest.sequences:
            total += self.reading_s(fullest.sequences, fullest.cache_tokens / fullest.sequences, work.rows_each)
        for tokens, before in fullest.chunks:
            total += self._attending(_up(tokens, _CHUNK), _up(before, _BEFORE), 1)
        return total

    def reading_s(self, sequences: int, mean_context: float, rows_each: int = 1) -> float:
        """Attention of sequences that decode, over caches of this mean length."""
        padded = composed_rows(sequences)
        of_all = padded * self._ranks  # of which each rank reads as many
        octave = floor(2 * log2(max(1.0, mean_context))) / 2
        below, above = int(2**octave), ceil(2 ** (octave + 0.5))
        least, most = (self._attending(of_all * rows_each, context, of_all) for context in (below, above))
        # Those that pad a batch read nothing.
        return (least + (most - least) * (mean_context - below) / (above - below)) * sequences / padded

    def _linear_s(self, rows: int, answers: int, sequences: int, of_rank: int) -> float:
        parts = self._parts(rows=rows, context=0, sequences=min(rows, sequences), answers=answers, of_rank=of_rank)
        return sum(part.seconds for part in parts if part.name not in _OF_SEQUENCES)

    def _attending_s(self, rows: int, context: int, sequences: int) -> float:
        parts = self._parts(rows=rows, context=context, sequences=sequences, answers=1)
        return sum(part.seconds for part in parts if part.name in _OF_SEQUENCES)


def _tokens(chunks: Sequence[tuple[int, int]]) -> int:
    return sum(tokens for tokens, _ in chunks)


def composed_rows(rows: int) -> int:
    """The next size that is composed, which is also what engines record graphs of."""
    if rows <= _FEW:
        return rows
    return _up(rows, 8) if rows <= _EIGHT else _up(rows, _LARGE)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
