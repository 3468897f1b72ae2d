"""Acceptance model: a draft's confidence along a text, and the resulting acceptance of chains and static trees.

At every position the draft gives its first candidate a probability, and that candidate is the target's token with
exactly that probability: at its fitted temperature, the bundled pair's draft is calibrated to 0.03 in every decile. The
probability's logit is normal. In that pair, half of its variance belongs to the single token; the other half is shared
by a stretch of text and decays slowly. The shared half makes acceptance rise along a chain (it has met an easy stretch)
and c_1 fall as chains grow (long ones swallow the easy stretches, so rounds begin in hard ones); the other half is what
a tree that follows likely tokens exploits. Independent positions show neither.

Letters: N texts, T positions of each, K candidates.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from pydantic import Field

from swiftspec.acceptance.numerics import logistic
from swiftspec.files.document import Facts

_Floats = npt.NDArray[np.float64]

# Texts on which fixed shapes are computed: as long as the benchmarks' outputs, and enough of them.
_NUM_TEXTS, _NUM_TOKENS, _SEED = 256, 192, 0
_LEAST_SHARE = 1e-12  # log-probs are finite


class AcceptanceModel(Facts):
    """A draft's behaviour relative to its target, on one kind of text."""

    mean_logit: float  # of the probability of the draft's first candidate; nats
    spread: float = Field(ge=0)  # standard deviation of that logit over positions; nats
    # Share of the logit's variance that belongs to the stretch of text rather than the token
    persistence: float = Field(ge=0, le=1)
    correlation_length: float = Field(gt=0)  # tokens after which the correlation of that share falls to 1/e
    # Probability that the second candidate is right when the first is wrong. When r were wrong, the next is right with
    # runner_up / sqrt(r), and no candidate is more likely than the one before it.
    runner_up: float = Field(gt=0, lt=1)
    # Logit lost per token that a head drafts from its own features; 0 for a draft model. A trace has no depth, so such
    # a head's acceptance can be computed for fixed shapes, but not synthesised.
    depth_loss: float = 0.0


# Defaults for fields that a pair's published figures do not determine. Spread and correlation length are those of the
# bundled pair, the only one with recorded log-probs; persistence and runner_up are means over it and the published
# pairs that identify them (tests/acceptance/test_prior.py computes all four again).
PRIOR = AcceptanceModel(mean_logit=2.5, spread=3.5, persistence=0.3, correlation_length=100.0, runner_up=0.7)


def logits(acceptance_model: AcceptanceModel, *, num_texts: int, num_tokens: int, seed: int) -> _Floats:
    """Logits of the first candidate's probability, array (N, T). A seed has the same noise for every model."""
    shared, own = _noise(acceptance_model.correlation_length, num_texts, num_tokens, seed)
    persistence = acceptance_model.persistence
    noise: _Floats = np.sqrt(persistence) * shared + np.sqrt(1 - persistence) * own
    return acceptance_model.mean_logit + acceptance_model.spread * noise


def candidate_shares(first: _Floats, runner_up: float, num_candidates: int) -> _Floats:
    """Probabilities of the K candidates, best first, array (..., K), given those of the first."""
    shares = np.empty((*first.shape, num_candidates))
    shares[..., 0] = first
    left = 1 - first
    for rank in range(1, num_candidates):
        shares[..., rank] = np.minimum(shares[..., rank - 1], left * runner_up / np.sqrt(rank))
        left = left - shares[..., rank]
    return np.maximum(shares, _LEAST_SHARE)


def rank_acceptance(acceptance_model: AcceptanceModel, num_ranks: int) -> list[float]:
    """Share of positions whose token is the draft's first candidate, second, ..., up to `num_ranks`."""
    first = logistic(_reference_logits(acceptance_model))
    means: list[float] = candidate_shares(first, acceptance_model.runner_up, num_ranks).mean(axis=(0, 1)).tolist()
    return means


def tree_acceptance(acceptance_model: AcceptanceModel, widths: Sequence[int]) -> list[float]:
    """Share of rounds in which the first j + 1 draft tokens are accepted, for j below the tree's depth.

    widths: children of every node of a level, the root's first; all 1 is a chain.

    Notes
    -----
    A position is reached in a state: the number of the round's tokens accepted before it. With the probability that its
    token is in the tree the state advances; otherwise, and after a full path, its token is the bonus token, and the
    next round begins. The requested share is a state's weight over that of the first, over rounds that end within the
    text: exact for these texts, and smooth in the parameters.
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"widths is {widths}; expected a level or more, of at least one child each")
    depth = len(widths)
    state = np.zeros((depth + 1, _NUM_TEXTS))
    state[0] = 1.0
    weights = np.empty((_NUM_TOKENS, depth + 1))
    for position, hit in enumerate(_hits(acceptance_model, widths)):
        weights[position] = state.sum(axis=1)
        onward = state[:-1] * hit
        begins = state.sum(axis=0) - onward.sum(axis=0)
        state[1:] = onward
        state[0] = begins
    rounds = _NUM_TOKENS - depth
    accepted = [float(weights[level : level + rounds, level].sum()) for level in range(depth + 1)]
    return [count / accepted[0] for count in accepted[1:]]


def _hits(acceptance_model: AcceptanceModel, widths: Sequence[int]) -> _Floats:
    """Probability that a level holds the token, by position, level and text: array (T, levels, N)."""
    by_position = _reference_logits(acceptance_model).T[:, None, :]
    hits = np.empty((by_position.shape[0], len(widths), by_position.shape[2]))
    first: _Floats
    if acceptance_model.depth_loss:
        first = logistic(by_position - acceptance_model.depth_loss * np.arange(len(widths))[:, None])
    else:
        first = np.broadcast_to(logistic(by_position), hits.shape)
    if max(widths) == 1:
        return first
    for level, width in enumerate(widths):
        hits[:, level] = candidate_shares(first[:, level], acceptance_model.runner_up, width).sum(axis=-1)
    return hits


def _reference_logits(acceptance_model: AcceptanceModel) -> _Floats:
    return logits(acceptance_model, num_texts=_NUM_TEXTS, num_tokens=_NUM_TOKENS, seed=_SEED)


@lru_cache(maxsize=8)  # a fit requests the same noise repeatedly
def _noise(correlation_length: float, num_texts: int, num_tokens: int, seed: int) -> tuple[_Floats, _Floats]:
    """Noise that a stretch of text shares, and noise of single tokens: two arrays (N, T) of mean 0 and variance 1.

    Texts come in pairs whose shared parts are mirror images and begin at evenly spaced quantiles: a dozen of them have
    the mean of many, which a dozen independent ones would miss by a third of their spread.
    """
    rng = np.random.default_rng(seed)
    num_pairs = -(-num_texts // 2)
    kept = np.exp(-1 / correlation_length)
    steps = np.sqrt(1 - kept**2) * rng.standard_normal((num_tokens, num_pairs))
    evenly = (np.arange(num_pairs) + 0.5) / (2 * num_pairs)
    steps[0] = rng.permutation([NormalDist().inv_cdf(probability) for probability in evenly.tolist()])
    for before, step in pairwise(steps):
        step += kept * before
    shared = np.stack([steps.T, -steps.T], axis=1).reshape(2 * num_pairs, num_tokens)[:num_texts]
    own = rng.standard_normal((num_texts, num_tokens))
    own -= own.mean()
    return shared / np.sqrt(np.mean(shared**2)), own / own.std()
