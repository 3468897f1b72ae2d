"""Guesses of a head on its own hidden states, for every output position and number of tokens that it drafted itself."""

from collections.abc import Sequence

import numpy as np
import torch

from swiftspec.artifacts.trace import Guesses
from swiftspec.engine.model.drafts.head_runner import HeadRunner
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.policies.effects import ForwardKind, Row
from swiftspec.profiler.masked_guesses import NUM_AHEAD

__all__ = ["head_guesses"]

_SEQUENCE = 0


def head_guesses(
    head: HeadRunner, prompt: Sequence[int], nearest: Guesses, output: Sequence[int], *, tree_slots: int
) -> Guesses:
    """The best tokens [T, D, K] at each output position if the d = 1 .. D tokens before it were the head's own.

    On the target's path: from each of some verified tokens a chain of what follows, a depth of all chains at a time.

    Parameters
    ----------
    head : HeadRunner
        Its target has the whole text in its prefix.
    nearest : Guesses
        The head's [T, K] after verified tokens. They stand where the output has too few tokens before the position.
    tree_slots : int
        Slots of its tree.
    """
    head.reset(_SEQUENCE)
    if len(prompt) > 1:
        head.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(_SEQUENCE, tuple(prompt[:-1])),)))
    context, first = [prompt[-1], *output[:-1]], len(prompt) - 1
    tokens, logprobs = (np.repeat(column[:, None], NUM_AHEAD, axis=1) for column in nearest)
    for start in range(0, len(context), tree_slots // (1 + NUM_AHEAD)):
        roots = context[start : start + tree_slots // (1 + NUM_AHEAD)]
        rows = tuple(Row(token, first + start + i, (1 << i) - 1) for i, token in enumerate(roots))
        head.forward(ForwardBatch(ForwardKind.EXACT, (Rows(_SEQUENCE, rows),)))
        seen = [[*range(root + 1)] for root in range(len(roots))]  # slots that each chain sees, its last one at the end
        num_slots = len(roots)
        for ahead in range(1, NUM_AHEAD + 1):
            places = range(start + ahead, min(start + ahead + len(roots), len(context)))
            if not places:
                break
            chains = seen[: len(places)]
            rows = tuple(
                Row(context[place], first + place, sum(1 << slot for slot in chain))
                for place, chain in zip(places, chains, strict=True)
            )
            logits = head.ahead(_SEQUENCE, rows, [chain[-1] for chain in chains])
            best = logits.log_softmax(-1).topk(nearest.num_candidates, dim=-1)
            tokens[places, ahead - 1], logprobs[places, ahead - 1] = _arrays(best)
            for slot, chain in enumerate(chains, start=num_slots):
                chain.append(slot)
            num_slots += len(chains)
        head.keep(_SEQUENCE, range(len(roots)), len(roots))
    return Guesses(tokens, logprobs)


def _arrays(best: torch.return_types.topk) -> tuple[np.ndarray, np.ndarray]:
    return best.indices.numpy().astype(np.int32), best.values.numpy().astype(np.float32)
