"""Synthesised trace of an acceptance model, or of rates by position, like one that `swiftspec trace` would record."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.model import PRIOR, AcceptanceModel, candidate_shares, logits
from swiftspec.acceptance.numerics import logistic, root
from swiftspec.artifacts.trace import SYNTHESISED, AcceptanceTrace, Guesser, Guesses, TracedPrompt
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies import DraftKind

_Floats = npt.NDArray[np.float64]

# No figures are published for these guessers, so they have the bundled pair's, in whose trace the first guess is right
# at 82.6 % of the positions for the draft, 79.8 % for the fuzzy draft and 40.4 % for the exit. The exit's logit there
# rises by 0.3 of the draft's; the fuzzy draft errs where the draft is unsure, too. tests/acceptance/test_prior.py
# computes all of it again.
FUZZY_SHARE = 0.798 / 0.826
EXIT_ACCEPTANCE = 0.404
EXIT_SLOPE = 0.3

_FIRST_TOKEN, _LAST_TOKEN = 100, 30_000  # ids are arbitrary here; those below are never candidates
_GOLDEN = (5**0.5 - 1) / 2
_LEAST_RATE = 1e-4  # at a position; logits are finite
_INDEPENDENT = PRIOR.model_copy(update={"persistence": 0.0})


def synthesise(
    acceptance_model: AcceptanceModel,
    *,
    num_prompts: int,
    prompt_length: int,
    num_tokens: int,
    seed: int,
    target: ModelRef,
    draft: ModelRef,
    num_candidates: int = 16,
) -> AcceptanceTrace:
    """Prompts whose outputs have this acceptance model, with guesses of the draft, the fuzzy draft and the exit.

    The target's ranks are drawn by the candidates' log-probs: a draft at its fitted temperature.

    num_prompts, prompt_length, num_tokens: number of prompts, their length, and output tokens of each. seed: with the
    same seed, all acceptance models get the same text.

    ValueError: if a count is below 1, or the acceptance model has a depth loss, since a trace has no depth.
    """
    if acceptance_model.depth_loss:
        raise ValueError(
            f"depth_loss is {acceptance_model.depth_loss}; a trace has no depth, so only 0 can be synthesised"
        )
    texts = _texts(acceptance_model, num_prompts=num_prompts, num_tokens=num_tokens, seed=seed)
    acceptance = float(logistic(texts.logits).mean())
    first = {
        Guesser.DRAFT: logistic(texts.logits),
        Guesser.FUZZY: _of_mean(texts.logits, FUZZY_SHARE * acceptance),
        Guesser.EXIT: _of_mean(EXIT_SLOPE * texts.logits, EXIT_ACCEPTANCE),
    }
    guessed = {
        guesser: texts.guesses(shares, num_candidates, exits=guesser is Guesser.EXIT)
        for guesser, shares in first.items()
    }
    return _trace(texts, guessed, prompt_length=prompt_length, target=target, draft=draft)


def synthesise_positions(
    rates: Sequence[float],
    *,
    kind: DraftKind,
    num_prompts: int,
    prompt_length: int,
    num_tokens: int,
    seed: int,
    target: ModelRef,
    draft: ModelRef,
    num_candidates: int = 16,
) -> AcceptanceTrace:
    """Prompts on which a draft's chains are accepted at these conditional rates, whatever their length.

    The draft is as sure as it is right at every position, and a token that it is unsure of it guesses worse from any
    distance; but positions are independent, unlike those of `synthesise`, since otherwise the rates of the later ones
    would depend on the length of the chains. Beyond the last rate it holds.

    rates: by position, the share of rounds that accept the token there, of those that accepted all before it. kind:
    what a later position has not seen: masks, or hidden states of the target. num_prompts, prompt_length, num_tokens,
    seed: as of `synthesise`.

    ValueError: if there is no rate, one is not a share, or a count is below 1.
    """
    if not rates:
        raise ValueError("rates is empty; expected one for each position")
    if strange := [rate for rate in rates if not 0 <= rate <= 1]:
        raise ValueError(f"rates has {strange[0]:g}; expected shares from 0 to 1")
    texts = _texts(_INDEPENDENT, num_prompts=num_prompts, num_tokens=num_tokens, seed=seed)
    within = [min(max(rate, _LEAST_RATE), 1 - _LEAST_RATE) for rate in rates]
    by_position = [texts.guesses(_of_mean(texts.logits, rate), num_candidates) for rate in within]
    ahead = None
    if by_position[1:]:
        ahead = _GuessArrays(*(np.stack(arrays, axis=2) for arrays in zip(*by_position[1:], strict=True)))
    guessed = {Guesser.DRAFT: by_position[0]}
    return _trace(texts, guessed, prompt_length=prompt_length, target=target, draft=draft, kind=kind, ahead=ahead)


class _GuessArrays(NamedTuple):
    """For N texts: the target's rank (K if it is not among the candidates), the candidates' ids and their log-probs."""

    ranks: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]


class _Texts(NamedTuple):
    """Output tokens, the draft's logits and the luck of its guesses, arrays (N, T)."""

    acceptance_model: AcceptanceModel
    tokens: npt.NDArray[np.int32]
    logits: _Floats
    luck: _Floats
    luck_of_exit: _Floats

    def guesses(self, first: _Floats, num_candidates: int, *, exits: bool = False) -> _GuessArrays:
        """Guesses whose first candidate has these probabilities; all are consecutive ids, the target's at its rank."""
        if num_candidates < 1:
            raise ValueError(f"num_candidates is {num_candidates}; expected at least 1")
        shares = candidate_shares(first, self.acceptance_model.runner_up, num_candidates)
        luck = self.luck_of_exit if exits else self.luck
        ranks = (np.cumsum(shares, axis=-1) <= luck[..., None]).sum(axis=-1, dtype=np.int32)
        ids = (self.tokens - ranks)[..., None] + np.arange(num_candidates, dtype=np.int32)
        return _GuessArrays(ranks, ids, np.log(shares).astype(np.float32))


def _texts(acceptance_model: AcceptanceModel, *, num_prompts: int, num_tokens: int, seed: int) -> _Texts:
    for name, value in {"num_prompts": num_prompts, "num_tokens": num_tokens}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")
    of_draft = logits(acceptance_model, num_texts=num_prompts, num_tokens=num_tokens, seed=seed)
    rng = np.random.default_rng([seed, 1])
    tokens = rng.integers(_FIRST_TOKEN, _LAST_TOKEN, of_draft.shape, dtype=np.int32)
    return _Texts(acceptance_model, tokens, of_draft, _luck(of_draft, rng), _luck(of_draft, rng))


def _trace(
    texts: _Texts,
    guessed: dict[Guesser, _GuessArrays],
    *,
    prompt_length: int,
    target: ModelRef,
    draft: ModelRef,
    kind: DraftKind = DraftKind.SERIAL,
    ahead: _GuessArrays | None = None,
) -> AcceptanceTrace:
    if prompt_length < 1:
        raise ValueError(f"prompt_length is {prompt_length}; expected at least 1")
    prompts = tuple(
        TracedPrompt(
            prompt_id=f"synthesised-{number}",
            prompt_tokens=np.zeros(prompt_length, np.int32),
            target_tokens=tokens,
            guesses={guesser: Guesses(found.ids[number], found.logprobs[number]) for guesser, found in guessed.items()},
            ranks=guessed[Guesser.DRAFT].ranks[number],
            ended=False,
            ahead=None if ahead is None else Guesses(ahead.ids[number], ahead.logprobs[number]),
        )
        for number, tokens in enumerate(texts.tokens)
    )
    return AcceptanceTrace(
        origin=Origin.here(), source=SYNTHESISED, target=target, draft=draft, prompts=prompts, draft_kind=kind
    )


def _luck(confidence: _Floats, rng: np.random.Generator) -> _Floats:
    """A number in [0, 1) per position, evenly spread over positions of similar confidence.

    So acceptance matches the process at every level of confidence, not only in the long run.
    """
    order = np.argsort(confidence, axis=None, kind="stable")  # equal ones in one order on every processor
    spread = np.empty(confidence.size)
    spread[order] = (rng.random() + _GOLDEN * np.arange(confidence.size)) % 1
    return spread.reshape(confidence.shape)


def _of_mean(from_logits: _Floats, mean: float) -> _Floats:
    """Probabilities with that mean, at logits shifted from these by a constant."""
    most = float(np.abs(from_logits).max()) + 20
    shifted: _Floats = logistic(from_logits + root(lambda by: logistic(from_logits + by).mean() - mean, -most, most))
    return shifted
