"""Residual sampling of chains whose draft is in another process: its laws go beside its messages.

The rule is that of `rejection_sampler` for one candidate of a row, or a few at a fork. A draft's token is its own draw
with the noise of the target's draw (see `Sampler.with_noise`), and decided by the ratio of both probabilities if it is
among the rows of a verification. After a row whose next token is not known yet the target draws with that noise, which
gives the draft's token most often. Tokens after a rejection are drawn with noise of their own.

The output has the target's law as long as whether a token is verified depends on noise of earlier positions only: a
chain is as long as its draft had time for, or as unsure tokens let it be. Drafts that grow a tree are therefore
followed, see `Policy.keeps_tree`.

R rows, V vocabulary. A law is probabilities that sum to 1.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import as_candidates
from swiftspec.engine.model.sampling.paths import CachedPaths, Path, parent_slot
from swiftspec.engine.model.sampling.rejection_sampler import COINS, Proposal, accept, drawn
from swiftspec.engine.model.sampling.sampler import Floats, Sampler, gumbel, stream, top_candidates
from swiftspec.policies.effects import Candidates, Message, Role, Row, Subtree

_AFTER_REJECTION = 3  # a use of random numbers, beside those of `rejection_sampler`
# A draft draws from so many of its likeliest tokens, which are all of its law then: the rest of a large vocabulary
# would be most of the bytes and none of the probability.
_MOST_TOKENS = 4096
_HEAD = struct.Struct("<16sIHH")  # path, position, tokens drawn, tokens of the law; little-endian, as all that follows


class Held(NamedTuple):
    """A proposal, and the row after which it was made."""

    position: int
    token: int  # -1 if it came from the other end
    proposal: Proposal


@dataclass(slots=True)
class _Undecided:
    """Rows of the last verification, their paths and scores, and what was drafted after each."""

    rows: Sequence[Row]
    paths: Sequence[Path]
    scores: Tensor
    children: list[set[int]]


class ChainSampler:
    """One end of one request. vocab_size: V."""

    def __init__(self, sampler: Sampler, *, vocab_size: int) -> None:
        self._sampler = sampler
        self.vocab_size = vocab_size
        self.held: dict[Path, Held] = {}  # what was proposed after each row
        self._cache = CachedPaths()
        self._undecided: _Undecided | None = None

    def prefill(self, _role: Role, tokens: Sequence[int]) -> None:
        self._cache.prefill(tokens)

    def keep(self, _role: Role, slots: Sequence[int], num_verified: int) -> None:
        """Compact the cache, as `KeepKV`. Proposals stay: a prepared chain is sent after its rows were dropped."""
        self._cache.keep(slots, num_verified)

    def propose(self, rows: Sequence[Row], logits: Tensor, num_candidates: int) -> tuple[Candidates, ...]:
        """Candidates of each draft row, in the order drawn; log-probs of the most likely tokens, drawn or not."""
        law = self._restricted(self._sampler.scores(logits)).softmax(dim=-1)
        answers = drawn(law, self._sampler.add_noise(law.log(), [row.position for row in rows]), num_candidates)
        for row, path, answer, own in zip(rows, self._cache.forward(rows), answers, law.numpy(), strict=True):
            self.held[path] = Held(row.position, row.token, Proposal(answer.tokens, own.copy()))
        return answers

    def guess(self, rows: Sequence[Row], logits: Tensor, num_candidates: int) -> tuple[Candidates, ...]:
        """The likeliest tokens after each draft row. After a rejection nothing is known of the target's noise."""
        self._cache.forward(rows)
        return as_candidates(*top_candidates(self._sampler.scores(logits), num_candidates))

    def choose(self, rows: Sequence[Row], logits: Tensor) -> tuple[int, ...]:
        """The target's token of each row: an accepted child, or a draw."""
        first = len(self._cache.tree)
        paths = self._cache.forward(rows)
        children = [set[int]() for _ in rows]
        for row in rows:
            if row.ancestors and parent_slot(row) >= first:
                children[parent_slot(row) - first].add(row.token)
        self.forget_before(rows[0].position)
        scores = self._sampler.scores(self._sampler.changed(logits, [row.position for row in rows]))
        self._undecided = _Undecided(rows, paths, scores, children)
        return self._decided()

    def choose_again(self, drafted: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The same, now that the tokens drafted after each row are known."""
        assert self._undecided is not None, "a verification comes first"
        for children, tokens in zip(self._undecided.children, drafted, strict=True):
            children.update(tokens)
        return self._decided()

    def _decided(self) -> tuple[int, ...]:
        assert self._undecided is not None, "set by the caller"
        rows, scores, children = self._undecided.rows, self._undecided.scores, self._undecided.children
        tokens = self._sampler.draw(scores, [row.position for row in rows])
        for index, (row, path) in enumerate(zip(rows, self._undecided.paths, strict=True)):
            held = self.held.get(path)
            if held and children[index]:
                coins = stream(self._sampler.seed, row.position, use=COINS)
                token, left = accept(scores[index].softmax(dim=-1).numpy(), held.proposal, children[index], coins)
                if token is None:
                    token = self._after_rejection(left, row.position)
                tokens[index] = token
        return tuple(tokens)

    def _after_rejection(self, left: Floats, position: int) -> int:
        noise = gumbel(stream(self._sampler.seed, position, use=_AFTER_REJECTION), left.shape)
        with np.errstate(divide="ignore"):
            return int((np.log(left) + noise).argmax())

    def _restricted(self, scores: Tensor) -> Tensor:
        if scores.shape[1] <= _MOST_TOKENS:
            return scores
        least = scores.topk(_MOST_TOKENS, dim=-1)
        return torch.full_like(scores, -torch.inf).scatter_(1, least.indices, least.values)

    def forget_before(self, position: int) -> None:
        self.held = {path: held for path, held in self.held.items() if held.position >= position}


class ProposalPayload:
    """Proposals beside a draft's chains, to one peer."""

    def __init__(self, sampler: ChainSampler) -> None:
        self._sampler = sampler
        self._sent: set[Path] = set()

    def outgoing(self, message: Message, /) -> bytes:
        """Proposals at the nodes of a chain that were not sent before; nothing beside any other message."""
        if not isinstance(message, Subtree):
            return b""
        self._sampler.forget_before(message.position)
        self._sent.intersection_update(self._sampler.held)
        tokens_at = defaultdict[int, set[int]](set)
        for row in message.rows():
            tokens_at[row.position].add(row.token)
        wanted = {path: held for path, held in self._sampler.held.items() if held.token in tokens_at[held.position]}
        new = [_encoded(path, held) for path, held in wanted.items() if path not in self._sent]
        self._sent.update(wanted)
        return b"".join(new)

    def takes(self, message: Message, payload: bytes, /) -> bool:
        """Keep the proposals beside a chain; False if they are none."""
        if not isinstance(message, Subtree):
            return not payload
        try:
            self._sampler.held |= dict(_decoded(payload, self._sampler.vocab_size))
        except (ValueError, struct.error):
            return False
        return True


def _encoded(path: Path, held: Held) -> bytes:
    tokens, law = held.proposal
    (possible,) = np.nonzero(law)
    head = _HEAD.pack(path, held.position, len(tokens), len(possible))
    numbers = np.concatenate((np.array(tokens, "<i4"), possible.astype("<i4")))
    return head + numbers.tobytes() + law[possible].astype("<f4").tobytes()


def _decoded(payload: bytes, vocab_size: int) -> Iterator[tuple[Path, Held]]:
    """Proposals of a payload. ValueError or struct.error for anything that `_encoded` does not write."""
    start = 0
    while start < len(payload):
        path, position, num_drawn, num_possible = _HEAD.unpack_from(payload, start)
        start += _HEAD.size
        tokens = np.frombuffer(payload, "<i4", num_drawn + num_possible, start)
        start += tokens.nbytes
        shares = np.frombuffer(payload, "<f4", num_possible, start)
        start += shares.nbytes
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
            raise ValueError("a token is outside the vocabulary")
        if not (np.isfinite(shares).all() and (shares >= 0).all()):
            raise ValueError("a probability is none")
        law = np.zeros(vocab_size, np.float32)
        law[tokens[num_drawn:]] = shares
        yield path, Held(position, -1, Proposal(tuple(tokens[:num_drawn].tolist()), law))


def most_proposal_bytes(vocab_size: int, num_rows: int) -> int:
    """Bytes of the largest payload, of so many rows."""
    return num_rows * (_HEAD.size + 8 * min(vocab_size, _MOST_TOKENS) + 4 * num_rows)
