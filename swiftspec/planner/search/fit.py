"""Fit of a policy's draft parameters to a trace, instead of a search for them."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.base import shape_of

__all__ = ["Fit", "fitted_temperature"]

_COLDEST, _HOTTEST = 0.1, 2.0
_NUM_RANKS = 8
_LEAST_SHARE = 0.001  # a probability of 0 or 1 has no odds


class Fit:
    """Fitted fields by name, the same for every policy that has them."""

    def __init__(self, trace: AcceptanceTrace) -> None:
        shares = trace.rank_acceptance(_NUM_RANKS)
        self.fields = {
            "draft_temperature": fitted_temperature(trace),
            "acceptance": round(min(max(shares[0], _LEAST_SHARE), 1 - _LEAST_SHARE), 3),
            "rank_acceptance": tuple(round(share, 4) for share in shares),
        }

    def __call__(self, policy: Policy) -> Policy:
        """The same shape with its fittable fields fitted."""
        shape = shape_of(policy)
        return make_policy(policy.name, **shape | {name: self.fields[name] for name in shape.keys() & self.fields})


def fitted_temperature(trace: AcceptanceTrace) -> float:
    """The temperature of greatest likelihood (temperature scaling, Guo et al., arXiv 1706.04599), in hundredths.

    Over the positions whose token is among the recorded candidates; 1 if there is none. Below 1 where the draft is less
    sure than it is right, as is a draft trained on a distribution of which the target takes the most likely token.
    """
    logprobs = np.concatenate([prompt.draft.logprobs for prompt in trace.prompts]).astype(float)
    ranks = np.concatenate([prompt.ranks for prompt in trace.prompts])
    recorded = np.flatnonzero(ranks < logprobs.shape[1])
    if not recorded.size:
        return 1.0
    chosen, logprobs = logprobs[recorded, ranks[recorded]], logprobs[recorded]

    def loss(coldness: float) -> float:  # convex in the inverse temperature, so that the minimum is the only one
        return float(np.mean(logsumexp(coldness * logprobs, axis=1) - coldness * chosen))

    fit = minimize_scalar(loss, bounds=(1 / _HOTTEST, 1 / _COLDEST), method="bounded")
    return round(1 / float(fit.x), 2)
