"""Chains of draft tokens replayed on a trace: how often each position is accepted."""

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.trace import AcceptanceTrace, TracedPrompt

__all__ = ["chain_rates"]


def chain_rates(trace: AcceptanceTrace, num_draft_tokens: int) -> tuple[tuple[float, ...], int]:
    """Share of the rounds in which at least 1, 2, .. draft tokens are accepted, and the number of rounds.

    1 plus their sum are a round's tokens. Rounds follow each other through every output, as greedy chains do; those
    that are cut off by its end do not count. ValueError if no output is as long as a chain.
    """
    accepted, num_rounds = np.zeros(num_draft_tokens), 0
    for prompt in trace.prompts:
        hits, start = _hits(prompt, num_draft_tokens), 0
        while start + num_draft_tokens <= len(hits):
            chain = hits[start + np.arange(num_draft_tokens), np.arange(num_draft_tokens)]
            length = num_draft_tokens if chain.all() else int(chain.argmin())
            accepted[:length] += 1
            num_rounds += 1
            start += length + 1
    if not num_rounds:
        longest = max(len(prompt.target_tokens) for prompt in trace.prompts)
        raise ValueError(
            f"num_draft_tokens is {num_draft_tokens}; the trace has no output of so many tokens, at most {longest}"
        )
    return tuple((accepted / num_rounds).tolist()), num_rounds


def _hits(prompt: TracedPrompt, num_draft_tokens: int) -> npt.NDArray[np.bool_]:
    """Whether the first candidate is the target's token, by position and number of the drafted token: (T, K)."""
    known = prompt.draft.tokens[:, :1]
    if prompt.ahead is None:
        firsts = np.repeat(known, num_draft_tokens, axis=1)
    else:
        ahead = prompt.ahead.tokens[:, :, 0]
        farther = np.minimum(np.arange(num_draft_tokens - 1), ahead.shape[1] - 1)  # as the simulator replays it
        firsts = np.concatenate([known, ahead[:, farther]], axis=1)
    hits: npt.NDArray[np.bool_] = firsts == prompt.target_tokens[:, None]
    return hits
