"""Synthesised trace of an acceptance model, like one that `swiftspec trace` would record."""

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit

from swiftspec.acceptance.model import AcceptanceModel, candidate_shares, logits
from swiftspec.artifacts.document import ModelRef, Origin
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser, Guesses, TracedPrompt

__all__ = ["EXIT_ACCEPTANCE", "EXIT_SLOPE", "FUZZY_SHARE", "synthesise"]

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

    Parameters
    ----------
    num_prompts, prompt_length, num_tokens : int
        Number of prompts, their length, and output tokens of each.
    seed : int
        With the same seed, all acceptance models get the same text.

    Raises
    ------
    ValueError
        If a count is below 1, or the acceptance model has a depth loss, since a trace has no depth.
    """
    counts = {"num_prompts": num_prompts, "prompt_length": prompt_length, "num_tokens": num_tokens}
    for name, value in (counts | {"num_candidates": num_candidates}).items():
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")
    if acceptance_model.depth_loss:
        raise ValueError(
            f"depth_loss is {acceptance_model.depth_loss}; a trace has no depth, so only 0 can be synthesised"
        )
    of_draft = logits(acceptance_model, num_texts=num_prompts, num_tokens=num_tokens, seed=seed)
    rng = np.random.default_rng([seed, 1])
    tokens = rng.integers(_FIRST_TOKEN, _LAST_TOKEN, of_draft.shape, dtype=np.int32)
    luck, luck_of_exit = _luck(of_draft, rng), _luck(of_draft, rng)
    acceptance = float(expit(of_draft).mean())
    confidences = {
        Guesser.DRAFT: (expit(of_draft), luck),
        Guesser.FUZZY: (_of_mean(of_draft, FUZZY_SHARE * acceptance), luck),
        Guesser.EXIT: (_of_mean(EXIT_SLOPE * of_draft, EXIT_ACCEPTANCE), luck_of_exit),
    }
    guessed = {
        guesser: _guesses(candidate_shares(first, acceptance_model.runner_up, num_candidates), tokens, drawn)
        for guesser, (first, drawn) in confidences.items()
    }
    ranks = guessed[Guesser.DRAFT][0]
    prompts = tuple(
        TracedPrompt(
            prompt_id=f"synthesised-{number}",
            prompt_tokens=np.zeros(prompt_length, np.int32),
            target_tokens=tokens[number],
            guesses={
                guesser: Guesses(ids[number], logprobs[number]) for guesser, (_, ids, logprobs) in guessed.items()
            },
            ranks=ranks[number],
            ended=False,
        )
        for number in range(num_prompts)
    )
    return AcceptanceTrace(origin=Origin.here(), source="synthesised", target=target, draft=draft, prompts=prompts)


def _luck(confidence: _Floats, rng: np.random.Generator) -> _Floats:
    """A number in [0, 1) per position, evenly spread over positions of similar confidence.

    So acceptance matches the process at every level of confidence, not only in the long run.
    """
    order = np.argsort(confidence, axis=None)
    spread = np.empty(confidence.size)
    spread[order] = (rng.random() + _GOLDEN * np.arange(confidence.size)) % 1
    return spread.reshape(confidence.shape)


def _of_mean(from_logits: _Floats, mean: float) -> _Floats:
    """Probabilities with that mean, at logits shifted from these by a constant."""
    most = float(np.abs(from_logits).max()) + 20
    shifted: _Floats = expit(from_logits + brentq(lambda by: expit(from_logits + by).mean() - mean, -most, most))
    return shifted


def _guesses(
    shares: _Floats, tokens: npt.NDArray[np.int32], luck: _Floats
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The target's rank (K if it is not among the candidates), the candidates' ids and their log-probs.

    The candidates are consecutive ids: the target's is the one at its rank.
    """
    num_candidates = shares.shape[-1]
    ranks = (np.cumsum(shares, axis=-1) <= luck[..., None]).sum(axis=-1, dtype=np.int32)
    ids = (tokens - ranks)[..., None] + np.arange(num_candidates, dtype=np.int32)
    return ranks, ids, np.log(shares).astype(np.float32)
