"""Guesses some tokens ahead of those that a draft knows: of a parallel one at masks, of a head on states of its own."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from swiftspec.artifacts.trace import Guesses
from swiftspec.engine.model.drafts.head_runner import HeadRunner
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.policies.effects import ForwardKind, Row

NUM_AHEAD = 8  # masks; PARD's drafts are trained for about as many
_SEQUENCE = 0


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

    forward: logits, as guesses take them, of rows after the given number of verified tokens of the text; those are the
    cache's prefix, its tree is empty. nearest: the draft's [T, K] without masks. They stand where the text has too few
    tokens for so many masks. tree_slots: most rows of a forward.
    """
    num_candidates = nearest.num_candidates
    tokens, logprobs = (np.repeat(column[:, None], NUM_AHEAD, axis=1) for column in nearest)
    text = [*prompt, *output]
    # The forward of `start` has some tokens of the text from there on, then the masks after each of them.
    per_forward = tree_slots // (1 + NUM_AHEAD)
    for start in range(max(0, len(prompt) - NUM_AHEAD - 1), len(text) - 2, per_forward):
        known = text[start : min(start + per_forward, len(text) - 2)]
        logits = forward(_masked_rows(known, start, mask_token), start)
        best = logits[len(known) :].log_softmax(-1).topk(num_candidates, dim=-1)
        for index in range(len(known)):
            # Mask d after this token guesses the output token at `first` + d.
            first = start + index + 1 - len(prompt)
            for ahead in range(max(1, -first), min(NUM_AHEAD, len(output) - 1 - first) + 1):
                row = index * NUM_AHEAD + ahead - 1
                tokens[first + ahead, ahead - 1] = best.indices[row].numpy()
                logprobs[first + ahead, ahead - 1] = best.values[row].numpy()
    return Guesses(tokens, logprobs)


def _masked_rows(known: Sequence[int], start: int, mask_token: int) -> tuple[Row, ...]:
    """A chain of tokens, then a chain of masks below each."""
    rows = [Row(token, start + slot, (1 << slot) - 1) for slot, token in enumerate(known)]
    for slot in range(len(known)):
        above = (1 << slot + 1) - 1
        for number in range(NUM_AHEAD):
            rows.append(Row(mask_token, start + slot + 1 + number, above))
            above |= 1 << len(rows) - 1
    return tuple(rows)


def head_guesses(
    head: HeadRunner,
    prompt: Sequence[int],
    nearest: Guesses,
    output: Sequence[int],
    *,
    sampler: Sampler,
    tree_slots: int,
) -> Guesses:
    """The best tokens [T, D, K] at each output position if the d = 1 .. D tokens before it were the head's own.

    On the target's path: from each of some verified tokens a chain of what follows, a depth of all chains at a time.

    head: its target has the whole text in its prefix. nearest: the head's [T, K] after verified tokens. They stand
    where the output has too few tokens before the position. sampler: the target's. tree_slots: slots of its tree.
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
            logits = sampler.with_noise(logits, [row.position for row in rows])
            best = logits.log_softmax(-1).topk(nearest.num_candidates, dim=-1)
            tokens[places, ahead - 1], logprobs[places, ahead - 1] = best.indices.numpy(), best.values.numpy()
            for slot, chain in enumerate(chains, start=num_slots):
                chain.append(slot)
            num_slots += len(chains)
        head.keep(_SEQUENCE, range(len(roots)), len(roots))
    return Guesses(tokens, logprobs)
