"""At which temperature the draft's probabilities are those of the target's choices, as recorded in a trace."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from swiftspec.acceptance import AcceptanceTrace

__all__ = ["fitted_temperature"]

_COLDEST, _HOTTEST = 0.1, 2.0


def fitted_temperature(trace: AcceptanceTrace) -> float:
    """The temperature of greatest likelihood (temperature scaling, Guo et al., arXiv 1706.04599), in hundredths.

    Over the positions whose token is among the recorded candidates; 1 if there is none. Below 1 where the draft is less
    sure than it is right, as a draft is that was trained on a distribution from which the target takes the likeliest.
    """
    logprobs = np.concatenate([prompt.draft_logprobs for prompt in trace.prompts]).astype(float)
    ranks = np.concatenate([prompt.ranks for prompt in trace.prompts])
    recorded = np.flatnonzero(ranks < logprobs.shape[1])
    if not recorded.size:
        return 1.0
    chosen, logprobs = logprobs[recorded, ranks[recorded]], logprobs[recorded]

    def loss(coldness: float) -> float:  # convex in the inverse temperature, so that the minimum is the only one
        return float(np.mean(logsumexp(coldness * logprobs, axis=1) - coldness * chosen))

    fit = minimize_scalar(loss, bounds=(1 / _HOTTEST, 1 / _COLDEST), method="bounded")
    return round(1 / float(fit.x), 2)
