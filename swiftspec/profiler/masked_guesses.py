"""Guesses of a parallel draft at masks, for every output position and every number of masks before it."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from swiftspec.artifacts.trace import Guesses
from swiftspec.policies.effects import Row

__all__ = ["NUM_AHEAD", "masked_guesses"]

NUM_AHEAD = 8  # masks; PARD's drafts are trained for about as many


def masked_guesses(
    forward: Callable[[tuple[Row, ...], int], torch.Tensor],
    prompt: Sequence[int],
    nearest: Guesses,
    output: Sequence[int],
    *,
    mask_token: int,
    tree_slots: int,
) -> Guesses:
    """The best tokens [T, D, K] at each output position after d = 1 .. D masks.

    Parameters
    ----------
    forward : callable
        Logits of rows after the given number of verified tokens of the text; those are the cache's prefix, its tree is
        empty.
    nearest : Guesses
        The draft's [T, K] without masks. They stand where the text has too few tokens for so many masks.
    tree_slots : int
        Most rows of a forward.
    """
    num_candidates = nearest.num_candidates
    tokens, logprobs = (np.repeat(column[:, None], NUM_AHEAD, axis=1) for column in nearest)
    text = [*prompt, *output]
    # The forward of `start` has some tokens of the text from there on, then the masks after each of them.
    per_forward = tree_slots // (1 + NUM_AHEAD)
    for start in range(max(0, len(prompt) - NUM_AHEAD - 1), len(text) - 2, per_forward):
        known = text[start : min(start + per_forward, len(text) - 2)]
        logits = forward(_rows(known, start, mask_token), start)
        best = logits[len(known) :].log_softmax(-1).topk(num_candidates, dim=-1)
        for index in range(len(known)):
            # Mask d after this token guesses the output token at `first` + d.
            first = start + index + 1 - len(prompt)
            for ahead in range(max(1, -first), min(NUM_AHEAD, len(output) - 1 - first) + 1):
                row = index * NUM_AHEAD + ahead - 1
                tokens[first + ahead, ahead - 1] = best.indices[row].numpy()
                logprobs[first + ahead, ahead - 1] = best.values[row].numpy()
    return Guesses(tokens, logprobs)


def _rows(known: Sequence[int], start: int, mask_token: int) -> tuple[Row, ...]:
    """A chain of tokens, then a chain of masks below each."""
    rows = [Row(token, start + slot, (1 << slot) - 1) for slot, token in enumerate(known)]
    for slot in range(len(known)):
        above = (1 << slot + 1) - 1
        for number in range(NUM_AHEAD):
            rows.append(Row(mask_token, start + slot + 1 + number, above))
            above |= 1 << len(rows) - 1
    return tuple(rows)
