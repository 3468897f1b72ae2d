"""Synthetic trace of independent, identically distributed positions: the draft that closed forms describe."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from swiftspec.artifacts.trace import SYNTHESISED, AcceptanceTrace, Guesser, Guesses, TracedPrompt
from swiftspec.files.document import ModelRef, Origin

_SYNTHETIC = ModelRef(model="synthetic", dtype="float32")


def synthesise_trace(
    rank_acceptance: Sequence[float], *, prompt_lengths: Sequence[int], num_tokens: int, seed: int
) -> AcceptanceTrace:
    """Synthesise a trace in which every position is accepted independently, with the same probabilities.

    Parameters
    ----------
    rank_acceptance : sequence of float
        Probability that the target's token is the draft's first candidate, second, ...; descending, at most 1 in all.
        The draft knows them: a candidate's log-prob is that of its rank. One entry is a chain of that acceptance.
    prompt_lengths : sequence of int
        One prompt for each length.
    num_tokens : int
        Output tokens per prompt.
    seed : int
    """
    shares = [*rank_acceptance, 1.0 - sum(rank_acceptance)]
    descending = all(left >= right for left, right in pairwise(rank_acceptance))
    if not rank_acceptance or min(rank_acceptance) <= 0 or shares[-1] < -1e-9 or not descending:
        raise ValueError(f"rank_acceptance is {rank_acceptance}; expected descending probabilities, at most 1 in all")
    rng = np.random.default_rng(seed)
    num_ranks = len(rank_acceptance)
    logprobs = np.tile(np.log(np.array(rank_acceptance, np.float32)), (num_tokens, 1))
    prompts = []
    for number, prompt_length in enumerate(prompt_lengths):
        ranks = np.searchsorted(np.cumsum(shares[:-1]), rng.random(num_tokens), side="right").astype(np.int32)
        # Candidates are consecutive ids; the id after them is one that the draft never proposes.
        first = rng.integers(1, 30_000, num_tokens).astype(np.int32)
        prompts.append(
            TracedPrompt(
                prompt_id=f"synthetic-{number}",
                prompt_tokens=np.zeros(prompt_length, np.int32),
                target_tokens=first + ranks,
                guesses={Guesser.DRAFT: Guesses(first[:, None] + np.arange(num_ranks, dtype=np.int32), logprobs)},
                ranks=ranks,
                ended=False,
            )
        )
    return AcceptanceTrace(
        origin=Origin.here(), source=SYNTHESISED, target=_SYNTHETIC, draft=_SYNTHETIC, prompts=tuple(prompts)
    )
