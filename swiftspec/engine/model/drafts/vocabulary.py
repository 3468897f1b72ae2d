"""Drafts whose vocabulary is padded to another size than their target's, as in many published pairs.

Both have one tokenizer, so the ids that only one of them has stand for no text. The draft reads such an id as token 0,
and proposes none: that costs guesses, never output.
"""

from math import inf

from torch.nn import functional as F

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Model, Rows, as_candidates
from swiftspec.engine.model.sampling.sampler import top_candidates


def with_vocabulary(draft: Model, *, own_size: int, size: int) -> Model:
    """A draft of `own_size` tokens as a model of a vocabulary of `size` tokens."""
    return draft if own_size == size else _ResizedDraft(draft, own_size=own_size, size=size)


class _ResizedDraft(Model):
    """A draft as its target's programs see it."""

    def __init__(self, draft: Model, *, own_size: int, size: int) -> None:
        self._draft, self._own_size, self._size = draft, own_size, size

    def forward(self, batch: ForwardBatch) -> BatchResult:
        is_larger = self._own_size > self._size
        result = self._draft.forward(self._readable(batch, top_k=0 if is_larger else batch.top_k))
        # A negative width cuts.
        logits = tuple(F.pad(each, (0, self._size - self._own_size), value=-inf) for each in result.logits)
        if not (is_larger and batch.top_k):
            return BatchResult(logits, result.candidates)
        return BatchResult(logits, tuple(as_candidates(*top_candidates(each, batch.top_k)) for each in logits))

    def check(self, batch: ForwardBatch) -> None:
        self._draft.check(self._readable(batch, top_k=0))

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        self._draft.keep(sequence, slots, num_verified)

    def reset(self, sequence: int, tenant: int = 0) -> None:
        self._draft.reset(sequence, tenant)

    def _readable(self, batch: ForwardBatch, *, top_k: int) -> ForwardBatch:
        return ForwardBatch(batch.kind, tuple(map(self._known, batch.entries)), top_k)

    def _known(self, entry: Entry) -> Entry:
        if isinstance(entry, Chunk):
            return entry._replace(tokens=tuple(map(self._known_token, entry.tokens)))
        return Rows(entry.sequence, tuple(row._replace(token=self._known_token(row.token)) for row in entry.rows))

    def _known_token(self, token: int) -> int:
        return token if token < self._own_size else 0
