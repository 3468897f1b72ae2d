"""A model as role programs use it, and its forward as a value: rows and prompt chunks of some sequences. No torch.

R rows of an entry, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from swiftspec.policies.effects import Candidates, ForwardKind, Row
from swiftspec.timing.steps import PREFILL_CHUNK

if TYPE_CHECKING:  # what only describes a forward does not wait seconds for torch
    from torch import Tensor


class Rows(NamedTuple):
    """Rows that become the newest tree nodes of a sequence. Each has logits."""

    sequence: int
    rows: tuple[Row, ...]

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def num_logits(self) -> int:
        """Rows of logits in the answer."""
        return len(self.rows)


class Chunk(NamedTuple):
    """Prompt tokens that join the prefix of a sequence without a tree.

    Only the last one has logits, unless `all_logits` of at most `PREFILL_CHUNK` tokens are wanted.
    """

    sequence: int
    tokens: tuple[int, ...]
    all_logits: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    @property
    def num_logits(self) -> int:
        return len(self.tokens) if self.all_logits else 1


Entry = Rows | Chunk


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward over rows of one or several sequences, each of which has a KV cache of its own.

    The logits of a row do not depend on what else is in the batch, but for rounding where torch multiplies.

    kind: chunks are part of exact forwards only. entries: at least one, and at most one of a sequence; none of them
    empty. top_k: number of candidates to find for each row of the logits; 0 for none.

    ValueError: for any other batch; the message names the sequence.
    """

    kind: ForwardKind
    entries: tuple[Entry, ...]
    top_k: int = 0

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("entries are empty; expected rows or a chunk of at least one sequence")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; expected 0 (no candidates) or a positive integer")
        for entry in self.entries:
            if not entry.num_rows:
                raise ValueError(f"sequence {entry.sequence} has an empty entry; expected at least one row or token")
            if isinstance(entry, Chunk):
                self._check_chunk(entry)
        seen: set[int] = set()
        for entry in self.entries if len(self.entries) > 1 else ():
            if entry.sequence in seen:
                raise ValueError(f"sequence {entry.sequence} has several entries in a batch; expected at most one")
            seen.add(entry.sequence)

    def _check_chunk(self, chunk: Chunk) -> None:
        if self.kind is not ForwardKind.EXACT:
            raise ValueError(f"sequence {chunk.sequence} has a chunk in a {self.kind} forward; expected rows")
        if chunk.all_logits and chunk.num_rows > PREFILL_CHUNK:
            raise ValueError(
                f"sequence {chunk.sequence} wants all logits of {chunk.num_rows} tokens; expected at most "
                f"{PREFILL_CHUNK} of a chunk"
            )


class BatchResult(NamedTuple):
    """Answer of a forward, one item for each entry. Logits are valid until the model's next forward.

    logits: fp32, [R, V] of rows and [1, V] of a chunk, or of all its rows. candidates: for each row of these logits the
    most likely next tokens and their natural log-probs; nothing unless the batch has a `top_k`.
    """

    logits: tuple[Tensor, ...]
    candidates: tuple[tuple[Candidates, ...], ...] = ()


def as_candidates(tokens: Iterable[Iterable[int]], logprobs: Iterable[Iterable[float]]) -> tuple[Candidates, ...]:
    return tuple(map(Candidates, map(tuple, tokens), map(tuple, logprobs)))


class DeviceError(RuntimeError):
    """A device has failed: nothing that it computes from now on can be trusted."""


class Model(Protocol):
    """A decoder with the caches of its sequences, which are numbered from 0, as the driver sees it.

    A ValueError names the sequence that is wrong; nothing has changed then, for any sequence.
    """

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Compute a batch: rows are appended to their sequences' trees, chunks to the prefixes."""

    def check(self, batch: ForwardBatch) -> None:
        """ValueError, naming the sequence, if `forward` would refuse an entry of this batch."""

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        """Keep tree slots of a sequence in this order; the first `num_verified` join the prefix."""

    def reset(self, sequence: int, tenant: int = 0, /) -> None:
        """Forget every cached token of a sequence, which is this tenant's from now on; 0 is the model itself."""
