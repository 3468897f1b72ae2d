"""Multi-round rejection (residual) sampling: both models' probabilities decide on draft tokens. Temperatures above 0.

Sources: Leviathan et al. (arXiv 2211.17192) for one candidate of a node, SpecInfer (arXiv 2305.09781) for several.

A node's candidates are drawn from the draft's distribution without replacement and tried in that order. Each is
accepted with probability target share / draft share; after a rejection the target's shares become their residual and
the draft's lose the rejected token. If none is accepted, the token is drawn from the residual. The result has the
target's distribution for any draft, on one condition: whether a candidate is verified must not depend on which token it
is. It may depend on everything else, including earlier candidates and other nodes. Two rules ensure that:

- Candidates are scored by the draft's largest shares, not by their own. Trees order nodes by score, and a node never
  outscores its parent; so a candidate's rank, and with it its place in the tree, does not depend on its token.
- A tree that survives more than one round is followed, not sampled. It may run out of slots, and when it does, leaving
  less room for new nodes, depends on what was drawn below nodes that are still to be verified.

A row without drawn candidates (prompt lookup, plain decoding) is followed too, which is exact for any tree.

R rows, V vocabulary. Shares are probabilities that sum to 1.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from swiftspec.engine.model.sampling.paths import CachedPaths, Path, parent_slot
from swiftspec.engine.model.sampling.sampler import Floats, Sampler, gumbel, stream
from swiftspec.policies.effects import Candidates, Role, Row

# Random streams other than the target's draws: the draft must not know what the target's tokens will be.
COINS, _CANDIDATES = 1, 2
# A policy's slots must suffice for two rounds from an empty tree; serial_tree's do, and no other policy keeps a tree.
_MOST_ROUNDS_KEPT = 1


class Proposal(NamedTuple):
    """The draft's proposal after a row: tokens in the order they were drawn, and the shares they were drawn from."""

    tokens: tuple[int, ...]
    shares: Floats


def drawn(shares: Tensor, noisy: Tensor, num_tokens: int) -> tuple[Candidates, ...]:
    """Tokens of each row by its shares [R, V], without replacement, in the order of drawing; fewer if shares run out.

    Their log-probs are those of the most likely tokens, drawn or not.

    noisy: log-probs and Gumbel noise, whose largest sums are such a sample (Kool et al., arXiv 1903.06059).
    """
    best = noisy.topk(min(num_tokens, shares.shape[1]), dim=-1)
    counts = (best.values > -torch.inf).sum(dim=-1).tolist()
    log_probs = shares.topk(best.indices.shape[1], dim=-1).values.log().tolist()
    rows = zip(best.indices.tolist(), log_probs, counts, strict=True)
    return tuple(Candidates(tuple(tokens[:count]), tuple(probs[:count])) for tokens, probs, count in rows)


def accept(
    shares: Floats, proposal: Proposal, verified: Collection[int], coins: np.random.Generator
) -> tuple[int | None, Floats]:
    """Try the verified candidates of a row on the target's shares [V].

    Returns the accepted candidate, or None if all are rejected, and the shares to draw the token from in that case.
    """
    left, drawn_from = shares, proposal.shares.copy()
    for token in proposal.tokens:
        if token in verified:
            if coins.random() * drawn_from[token] < left[token]:
                return token, left
            residual = np.maximum(left - drawn_from, 0.0)
            # Nothing is left if both distributions are the same; then a rejection is a rounding error.
            left = residual / total if (total := residual.sum()) > 0.0 else left
        drawn_from[token] = 0.0
        if (total := drawn_from.sum()) > 0.0:
            drawn_from /= total
    return None, left


class RejectionSampler:
    """Candidates and choices of a request whose two models are in one process; proposals last as long as their rows."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._generator = stream(sampler.seed, 0, use=_CANDIDATES)
        self._caches = {role: CachedPaths() for role in Role}
        self._proposals: dict[Path, Proposal] = {}
        self._rounds_kept = 0

    def prefill(self, role: Role, tokens: Sequence[int]) -> None:
        self._caches[role].prefill(tokens)

    def enter(self, rows: Sequence[Row], proposals: Iterable[Proposal]) -> None:
        self._proposals |= zip(self._caches[Role.DRAFT].forward(rows), proposals, strict=True)

    def look_up(self, rows: Sequence[Row]) -> list[tuple[Proposal | None, frozenset[int]]]:
        """The draft's proposal after each row of a target forward, and the row's children in this forward."""
        cache = self._caches[Role.TARGET]
        first = len(cache.tree)
        paths = cache.forward(rows)
        children = defaultdict[int, set[int]](set)
        for row in rows:
            if row.ancestors:
                children[parent_slot(row) - first].add(row.token)
        known = self._proposals if self._rounds_kept <= _MOST_ROUNDS_KEPT else {}
        return [(known.get(path), frozenset(children[index])) for index, path in enumerate(paths)]

    def keep(self, role: Role, slots: Sequence[int], num_verified: int) -> None:
        """Compact a role's paths; proposals at rows that the draft drops are forgotten."""
        self._caches[role].keep(slots, num_verified)
        if role is Role.DRAFT:
            tree = self._caches[role].tree
            self._rounds_kept = self._rounds_kept + 1 if tree else 0
            self._proposals = {path: self._proposals[path] for path in tree}

    def propose(self, rows: Sequence[Row], logits: Tensor, num_candidates: int) -> tuple[Candidates, ...]:
        """Candidates of each draft row, in the order drawn; log-probs of the most likely tokens, drawn or not.

        Every forward draws afresh: noise shared between nodes, as by position, would make one node's candidates, and so
        the tree's shape, depend on another's.
        """
        shares = self._sampler.scores(logits).softmax(dim=-1)
        noise = torch.from_numpy(gumbel(self._generator, tuple(shares.shape)))
        answers = drawn(shares, shares.log() + noise, num_candidates)
        # Copies: a view of one row would keep the whole forward's in memory.
        laws = [row.copy() for row in shares.numpy()]
        self.enter(rows, [Proposal(answer.tokens, law) for answer, law in zip(answers, laws, strict=True)])
        return answers

    def choose(self, rows: Sequence[Row], logits: Tensor) -> tuple[int, ...]:
        """The target's token of each row: an accepted child, or a draw."""
        scores = self._sampler.scores(self._sampler.changed(logits, [row.position for row in rows]))
        accepted: dict[int, int] = {}
        for index, (proposal, children) in enumerate(self.look_up(rows)):
            if proposal and children:
                coins = stream(self._sampler.seed, rows[index].position, use=COINS)
                token, left = accept(scores[index].softmax(dim=-1).numpy(), proposal, children, coins)
                if token is None:
                    scores[index] = torch.from_numpy(left).log()
                else:
                    accepted[index] = token
        tokens = self._sampler.draw(scores, [row.position for row in rows])
        return tuple(accepted.get(index, token) for index, token in enumerate(tokens))
